"""Step tables: which local query rows meet which key/value rows, block after block.

A table is frozen integers, computed for any rank without a process group, so that a test can
play all ranks in one process. The loop that executes it knows nothing of masks or partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringproof.reference.packing.partition import Span, rank_spans


@dataclass(frozen=True)
class Tile:
    """One call of a kernel.

    Args:
        q: Local query rows.
        kv: Rows of the key/value block.
        causal: Square lower-triangular mask; otherwise every row sees every column.
    """

    q: Span
    kv: Span
    causal: bool


@dataclass(frozen=True)
class Step:
    """One key/value block and what to do with it.

    Args:
        source: Index in the group of the rank that owns the block.
        tiles: Kernel calls; empty when the mask hides the whole block.
    """

    source: int
    tiles: tuple[Tile, ...]


def step_table(shards: Sequence[tuple[Span, ...]], rank: int, *, causal: bool) -> tuple[Step, ...]:
    """The steps of one rank: its own block first, then those of ranks ``r-1``, ``r-2``, …

    That is the order in which a ring delivers blocks when each rank sends to its successor.

    Args:
        shards: Positions held by each rank of the group, ascending. Shards are disjoint.
        rank: Index in the group.
        causal: Hide keys that come after the query.
    """
    size = len(shards)
    sources = [(rank - step) % size for step in range(size)]
    return tuple(
        Step(source, visible_tiles(shards[rank], shards[source], causal=causal))
        for source in sources
    )


def flat_step_table(
    seq_len: int, size: int, rank: int, *, partition: str, causal: bool
) -> tuple[Step, ...]:
    """The step table of a flat group over one sequence.

    Zigzag, two ranks, eight tokens, rank 0 holding positions 0, 1, 6, 7 and rank 1 the rest:
    the second block is seen by the later half of the query rows only.

    >>> for step in flat_step_table(8, 2, 0, partition="zigzag", causal=True): print(step)
    Step(source=0, tiles=(Tile(q=Span(start=0, stop=4), kv=Span(start=0, stop=4), causal=True),))
    Step(source=1, tiles=(Tile(q=Span(start=2, stop=4), kv=Span(start=0, stop=4), causal=False),))
    """
    shards = [rank_spans(seq_len, size, index, partition) for index in range(size)]
    return step_table(shards, rank, causal=causal)


def visible_tiles(
    q_spans: tuple[Span, ...], kv_spans: tuple[Span, ...], *, causal: bool
) -> tuple[Tile, ...]:
    """The fewest tiles that cover what the mask lets through.

    Both shards are in ascending order, so equal shards meet under one plain causal mask, and
    of a disjoint shard each query span sees a prefix. Query spans that see the same prefix
    share a tile.

    Args:
        q_spans: Positions of the local query rows.
        kv_spans: Positions of the block's rows; equal to ``q_spans`` or disjoint from it.
        causal: Hide keys that come after the query.
    """
    q_rows, kv_rows = sum(map(len, q_spans)), sum(map(len, kv_spans))
    if not causal:
        return (Tile(Span(0, q_rows), Span(0, kv_rows), causal=False),)
    if q_spans == kv_spans:
        return (Tile(Span(0, q_rows), Span(0, kv_rows), causal=True),)
    tiles: list[Tile] = []
    row = 0
    for q_span in q_spans:
        rows = Span(row, row + len(q_span))
        row = rows.stop
        prefix = sum(len(kv_span) for kv_span in kv_spans if kv_span.stop <= q_span.start)
        if not prefix:
            continue
        if tiles and tiles[-1].kv.stop == prefix and tiles[-1].q.stop == rows.start:
            rows = Span(tiles.pop().q.start, rows.stop)
        tiles.append(Tile(rows, Span(0, prefix), causal=False))
    return tuple(tiles)
