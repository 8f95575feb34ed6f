"""Which rows of the reference the rows of a rank are.

The order of rows is not assumed: it is the one of the known layouts in which the tokens of the
ranks are those of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ringproof.rehearsal.locate.reading import Array, RankRecord, RunTrace, coordinates

TOKENS = "input_ids"


def zigzag(rank: int, size: int, length: int) -> Array:
    """Rows [length / size] of the two chunks that a CP rank has of a sequence."""
    if size == 1:
        return np.arange(length)
    chunk = length // (2 * size)
    starts = (rank, 2 * size - 1 - rank)
    return np.concatenate([np.arange(at * chunk, (at + 1) * chunk) for at in starts])


def contiguous(rank: int, size: int, length: int) -> Array:
    """Rows [length / size] of a rank that has one block of a sequence."""
    part = length // size
    return np.arange(rank * part, (rank + 1) * part)


Layout = Callable[[int, int, int], Array]
LAYOUTS: Mapping[str, Layout] = MappingProxyType({"zigzag": zigzag, "contiguous": contiguous})


@dataclass(frozen=True)
class Rows:
    """Rows of one rank in a microbatch, as rows of the reference.

    Attributes:
        index: Rows of the same microbatch of the reference [n].
        whole: Rows of that microbatch in the reference, of one sample.
        batch: Samples of the microbatch.
    """

    index: Array
    whole: int
    batch: int


def layout_of(run: RunTrace, reference: RunTrace) -> str | None:
    """Return the layout in which most tokens of the run are those of the reference.

    Returns:
        ``None`` where fewer than half of the tokens are right in every layout, so that rows
        cannot be identified.
    """
    share = {name: _share(run, reference, layout) for name, layout in LAYOUTS.items()}
    best = max(share, key=lambda name: share[name])
    return best if share[best] >= 0.5 else None


def _share(run: RunTrace, reference: RunTrace, layout: Layout) -> float:
    right = whole = 0
    for rank in run.ranks:
        tensor, context, data, stage = coordinates(rank.trace.place)
        size = rank.trace.place.sizes[1]
        other = reference.at.get((tensor, 0, data, stage))
        for key in rank.batches if other else ():
            assert other is not None
            mine, theirs = tokens(rank, key), tokens(other, key)
            if mine is None or theirs is None or theirs.shape[1] != mine.shape[1] * size:
                continue
            right += int((mine == theirs[:, layout(context, size, theirs.shape[1])]).sum())
            whole += mine.size
    return right / whole if whole else 0.0


def rows_of(run: RunTrace, rank: RankRecord, layout: str, step: int, number: int) -> Rows | None:
    """Return the rows of a rank in a microbatch, which its first pipeline stage knows.

    Returns:
        ``None`` where the first stage is given no tokens.
    """
    tensor, context, data, _ = coordinates(rank.trace.place)
    given = tokens(run.at[tensor, context, data, 0], (step, 0, number))
    if given is None:
        return None
    size = rank.trace.place.sizes[1]
    length = given.shape[1] * size
    return Rows(LAYOUTS[layout](context, size, length), length, given.shape[0])


def tokens(rank: RankRecord, key: tuple[int, int, int], name: str = TOKENS) -> Array | None:
    """Return the tokens [b, s] of a microbatch, or another input of the model that is like them.

    Returns:
        ``None`` where a stage is given none.
    """
    step, chunk, number = key
    call = rank.calls.get((step, chunk, number, "", 0))
    if call is None or name not in call.inputs:
        return None
    found = rank.values(rank.trace.tensors[call.inputs[name]].value)
    return found if found.ndim == 2 else None
