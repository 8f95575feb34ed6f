"""Step tables: the local query rows and key/value rows of each block.

A table is frozen integers, computed for any rank without a process group, so that a test can
play all ranks in one process. The loop that executes it knows nothing of masks, partitions or
packing: a row of padding, or of another sequence, is simply in no tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringproof.reference.packing.partition import Span
from ringproof.reference.packing.shards import Sharding

if TYPE_CHECKING:  # tables are made without torch, which this imports
    from ringproof.reference.attention.masks import RowMask


@dataclass(frozen=True)
class Tile:
    """One call of a kernel.

    Args:
        q: Local query rows.
        kv: Rows of the key/value block.
        causal: Square lower-triangular mask; otherwise every row sees every column.
        mask: Hides more, by tensors; see ``masks``. No step table has one.
    """

    q: Span
    kv: Span
    causal: bool
    mask: RowMask | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Step:
    """One key/value block and what to do with it.

    Args:
        source: Index in the group of the rank that owns the block.
        tiles: Kernel calls, sequence after sequence; empty when the mask hides the whole block.
        calls: The same in fewer calls of a flash attention kernel; see ``calls``. Empty where
            nobody prepared them.
    """

    source: int
    tiles: tuple[Tile, ...]
    calls: tuple[Any, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True)
class Piece:
    """What one shard holds of one sequence.

    Args:
        row: First of its rows in the shard; they are neighbours.
        positions: Their rows in the whole, ascending; may be empty.
    """

    row: int
    positions: tuple[Span, ...]

    @property
    def rows(self) -> Span:
        """All of its rows in the shard."""
        return Span(self.row, self.row + sum(map(len, self.positions)))


def step_table(sharding: Sharding, rank: int, *, causal: bool) -> tuple[Step, ...]:
    """The steps of one rank: its own block first, then those of ranks ``r-1``, ``r-2``, …

    That is the order in which a ring delivers blocks when each rank sends to its successor.
    Zigzag, two ranks, eight tokens, rank 0 holding positions 0, 1, 6, 7 and rank 1 the rest:
    the second block is seen by the later half of the query rows only.

    >>> sharding = Sharding.of_sequence(8, 2, "zigzag")
    >>> for step in step_table(sharding, 0, causal=True): print(step)
    Step(source=0, tiles=(Tile(q=Span(start=0, stop=4), kv=Span(start=0, stop=4), causal=True),))
    Step(source=1, tiles=(Tile(q=Span(start=2, stop=4), kv=Span(start=0, stop=4), causal=False),))

    Args:
        sharding: Positions held by each rank of the group, and the sequences among them.
    """
    size = len(sharding.shards)
    held = [pieces(shard, sharding.sequences) for shard in sharding.shards]
    sources = [(rank - step) % size for step in range(size)]
    return tuple(
        Step(
            source,
            tuple(
                tile
                for q, kv in zip(held[rank], held[source], strict=True)
                for tile in visible_tiles(q, kv, causal=causal)
            ),
        )
        for source in sources
    )


def pieces(shard: tuple[Span, ...], sequences: Sequence[Span]) -> tuple[Piece, ...]:
    """What a shard holds of each sequence.

    A shard of two runs over two sequences. Position 3 is padding; it is in neither piece.

    >>> for piece in pieces((Span(1, 4), Span(6, 8)), [Span(0, 3), Span(4, 8)]): print(piece)
    Piece(row=0, positions=(Span(start=1, stop=3),))
    Piece(row=3, positions=(Span(start=6, stop=8),))

    Args:
        shard: Positions in the shard, ascending.
        sequences: Positions of each sequence, ascending and disjoint.
    """
    found = []
    index = row = 0  # the first run that may reach into the sequence, and its first row
    for sequence in sequences:
        while index < len(shard) and shard[index].stop <= sequence.start:
            row += len(shard[index])
            index += 1
        inside = _overlaps(shard, index, sequence)
        skipped = inside[0].start - shard[index].start if inside else 0
        found.append(Piece(row + skipped, inside))
    return tuple(found)


def _overlaps(shard: tuple[Span, ...], index: int, sequence: Span) -> tuple[Span, ...]:
    """The parts of a sequence in a shard's runs from ``index`` on."""
    inside = []
    while index < len(shard) and shard[index].start < sequence.stop:
        run = shard[index]
        inside.append(Span(max(run.start, sequence.start), min(run.stop, sequence.stop)))
        index += 1
    return tuple(inside)


def visible_tiles(q: Piece, kv: Piece, *, causal: bool) -> tuple[Tile, ...]:
    """The fewest tiles that cover what the mask lets through, of one sequence.

    Both pieces are in ascending order, so a piece meets itself under one plain causal mask, and
    of a disjoint piece each query span sees a prefix. Query spans that see the same prefix
    share a tile.

    Args:
        kv: The block's rows; the same positions as ``q``, or none of them.
    """
    if not q.positions or not kv.positions:
        return ()
    if not causal or q.positions == kv.positions:
        return (Tile(q.rows, kv.rows, causal),)
    tiles: list[Tile] = []
    row = q.row
    for q_span in q.positions:
        rows = Span(row, row + len(q_span))
        row = rows.stop
        seen = sum(len(kv_span) for kv_span in kv.positions if kv_span.stop <= q_span.start)
        if not seen:
            continue
        columns = Span(kv.row, kv.row + seen)
        if tiles and tiles[-1].kv == columns and tiles[-1].q.stop == rows.start:
            rows = Span(tiles.pop().q.start, rows.stop)
        tiles.append(Tile(rows, columns, causal=False))
    return tuple(tiles)
