"""Which rows of the reference the rows of a rank are.

Rows of packed sequences are those of the same sequence at the same position, wherever the reference
computes it. Other rows are those of the same sample: their order is the one of the known layouts in
which the tokens of the ranks are those of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from ringproof.rehearsal.locate.reading import Array, RankRecord, RunTrace, coordinates

TOKENS, POSITIONS = "input_ids", "position_ids"
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
        tensor: TP coordinate of that rank; -1 for that of the rank itself.
    """

    context: int
    data: int
    microbatch: int
    rows: int
    tensor: int = -1


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


def plain_rows(index: Array, source: Source, batch: int) -> Rows:
    """Return rows that all are in one microbatch of the reference, by their positions in it."""
    none = np.zeros(len(index), dtype=np.int64)
    return Rows((source,), none, index, index, none, batch)


def dealt_as(run: RunTrace) -> str | None:
    """Return the layout in which positions that the model is given are those of one sequence.

    Returns:
        ``None`` where they are in no known layout.
    """
    if run.ranks[0].trace.place.sizes[1] == 1:
        return "contiguous"
    for name, layout in LAYOUTS.items():
        found = [
            bool((given == layout(record.trace.place.context, size, given.shape[1] * size)).all())
            for record in run.ranks
            for size in (record.trace.place.sizes[1],)
            for key in record.batches
            if (given := tokens(record, key, POSITIONS)) is not None
        ]
        if found and all(found):
            return name
    return None


def places(layout: str, size: int, length: int) -> Array:
    """Return where each row of a sequence [length] is in those of its CP ranks, one by one."""
    rows = [LAYOUTS[layout](rank, size, length) for rank in range(size)]
    return np.argsort(np.concatenate(rows))


def layout_of(run: RunTrace, reference: RunTrace, dealt: str) -> str | None:
    """Return the layout in which most tokens of the run are those of the reference.

    Args:
        dealt: Layout of the reference.

    Returns:
        ``None`` where fewer than half of the tokens are right in every layout, so that rows
        cannot be identified.
    """
    share = {name: _share(run, reference, name, dealt) for name in LAYOUTS}
    best = max(share, key=lambda name: share[name])
    return best if share[best] >= 0.5 else None


def _share(run: RunTrace, reference: RunTrace, layout: str, dealt: str) -> float:
    right = whole = 0
    for rank in run.ranks:
        tensor, context, data, stage = coordinates(rank.trace.place)
        for key in rank.batches:
            mine, theirs = tokens(rank, key), []
            for at, other in sorted(reference.at.items()):
                known = tokens(other, key) if (at[0], *at[2:]) == (tensor, data, stage) else None
                theirs += [] if known is None else [known]
            count = sum(one.shape[1] for one in theirs)
            size = rank.trace.place.sizes[1]
            alike = mine is not None and {len(one) for one in theirs} == {len(mine)}
            if mine is None or not alike or count != mine.shape[1] * size:
                continue
            rows = places(dealt, len(theirs), count)[LAYOUTS[layout](context, size, count)]
            right += int((mine == np.concatenate(theirs, axis=1)[:, rows]).sum())
            whole += mine.size
    return right / whole if whole else 0.0


def own_rows(run: RunTrace, rank: RankRecord, step: int, number: int) -> Rows | None:
    """Return the rows of a rank in a microbatch, which its first pipeline stage knows.

    Returns:
        ``None`` where the first stage is given no tokens.
    """
    tensor, context, data, _ = coordinates(rank.trace.place)
    first = run.at.get((tensor, context, data, 0))
    given = None if first is None else tokens(first, (step, 0, number))
    if given is None:
        return None
    count = given.shape[1]
    return plain_rows(np.arange(count), Source(context, data, number, count), given.shape[0])


def rows_of(own: Rows, size: int, layout: str, others: int, dealt: str) -> Rows | None:
    """Return the rows of a rank as those of the reference.

    Args:
        own: Its own rows.
        size: Number of CP ranks, to which a sequence is dealt in a layout.
        others: The same of the reference, with the layout ``dealt``.

    Returns:
        ``None`` where the reference cannot have as many rows.
    """
    (source,) = own.sources
    length = source.rows * size
    found = places(dealt, others, length)
    if len(found) != length:
        return None
    position = LAYOUTS[layout](source.context, size, length)
    part, at = length // others, found[position]
    sources = tuple(replace(source, context=one, rows=part) for one in range(others))
    return Rows(sources, at // part, at % part, position, own.sequence, own.batch)


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
