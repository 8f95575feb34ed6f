"""Which rows of the reference the rows of a rank are.

Rows of packed sequences are those of the same sequence at the same position, wherever the reference
computes it. Other rows are those of the same sample: their order is the one of the known layouts in
which the tokens of the ranks are those of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ringproof.rehearsal.locate.reading import Array, RankRecord, RunTrace, coordinates

TOKENS = "input_ids"
MASK = "loss_mask"
"""Name of the input that is zero in rows of padding, which the reference need not have."""
PADDING = -1  # as the position and sequence of a row


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
class Source:
    """A microbatch of one rank of the reference.

    Attributes:
        context: CP coordinate of that rank.
        data: DP coordinate of that rank.
        rows: Rows that it has of one sample.
    """

    context: int
    data: int
    microbatch: int
    rows: int


@dataclass(frozen=True)
class Rows:
    """Rows of one rank in a microbatch, as rows of the reference.

    Attributes:
        sources: Where the reference has them.
        source: Index into ``sources`` of each row [n]; -1 where the reference has no such row.
        index: The row in that microbatch [n].
        position: Position in its sequence [n]; `PADDING` where it is none of a sequence.
        sequence: Number of its sequence in the pack [n]; zeros where sequences are not packed.
        batch: Samples of the microbatch.
    """

    sources: tuple[Source, ...]
    source: Array
    index: Array
    position: Array
    sequence: Array
    batch: int

    @property
    def whole(self) -> int:
        """Rows of the microbatch of the reference, of one sample, where there is only one."""
        return self.sources[0].rows


def plain_rows(index: Array, source: Source, batch: int) -> Rows:
    """Return rows that all are in one microbatch of the reference, by their positions in it."""
    none = np.zeros(len(index), dtype=np.int64)
    return Rows((source,), none, index, index, none, batch)


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
    first = run.at.get((tensor, context, data, 0))
    given = None if first is None else tokens(first, (step, 0, number))
    if given is None:
        return None
    size = rank.trace.place.sizes[1]
    length = given.shape[1] * size
    index = LAYOUTS[layout](context, size, length)
    return plain_rows(index, Source(0, data, number, length), given.shape[0])


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
