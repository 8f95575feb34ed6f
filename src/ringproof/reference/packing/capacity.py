"""Packs of one fixed size, and their rows as arrays of a fixed size.

A captured graph has the shapes it was captured with. So every pack that it serves has the same
rows and entries, and what differs between packs is in arrays that are copied in before a replay.
Worked table, 5 and 3 tokens in 8 and 4 rows over 2 ranks, capacity of 16 rows and 4 entries:

    entry   rows        real   what
    0       [0, 8)      5      sequence
    1       [8, 12)     3      sequence
    2       [12, 16)    0      dummy: the tail
    3       [16, 16)    0      unused

    rank   sequences             positions             places
    0      0  0 -1 -1  1 -1 ..   0  1 -1 -1  0 -1 ..   0 1 6 7 8 11 12 15
    1      0  0  0 -1  1  1 ..   2  3  4 -1  1  2 ..   2 3 4 5 9 10 13 14

Every row belongs to an entry, the dummy's too. A row that none covers is a *hidden tail*: what
its place in the arrays says is left over from another pack. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ringproof.errors import InputError
from ringproof.reference.packing.partition import round_up
from ringproof.reference.packing.sequences import Capacity, PackedSequences
from ringproof.reference.packing.shards import pack_spans

Rows = npt.NDArray[np.int64]

PADDING = -1
"""Sequence and position of a row that holds no token: nothing sees it and it sees nothing."""


@dataclass(frozen=True)
class RowArrays:
    """What the ``R`` rows of each of ``N`` ranks are; int64. The same on all ranks of the group.

    Args:
        sequences: ``[N, R]``, the entry that a row holds a token of, or :data:`PADDING`.
        positions: ``[N, R]``, where in that entry, or :data:`PADDING`.
        places: ``[N, R]``, row of the pack.
    """

    sequences: Rows
    positions: Rows
    places: Rows


def local_to_global(packed: PackedSequences, size: int, rank: int, partition: str) -> Rows:
    """Row of the pack of each local row of a rank: ``[rows / size]``.

    ``whole[local_to_global(...)]`` is the rank's part of ``whole``.

    Raises:
        InputError: The pack cannot be cut evenly.

    >>> from ringproof.reference.packing.sequences import pack
    >>> local_to_global(pack([7, 16], multiple=8), 2, 0, "zigzag").tolist()
    [0, 1, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23]
    """
    spans = pack_spans(packed, size, rank, partition)
    return np.concatenate([np.arange(span.start, span.stop) for span in spans])


def row_arrays(packed: PackedSequences, size: int, partition: str) -> RowArrays:
    """The rows of all ranks of a CP group.

    Raises:
        InputError: The pack cannot be cut evenly.

    >>> from ringproof.reference.packing.sequences import pack
    >>> row_arrays(pack([5, 3], multiple=4), 2, "zigzag").sequences.tolist()
    [[0, 0, -1, -1, 1, -1], [0, 0, 0, -1, 1, 1]]
    """
    places = np.stack([local_to_global(packed, size, rank, partition) for rank in range(size)])
    starts = np.asarray(packed.cu_seqlens_padded)
    # Among entries without rows the last one that starts here is meant: side="right".
    entries = np.searchsorted(starts, places, side="right") - 1
    positions = places - starts[entries]
    real = positions < np.asarray(packed.lengths)[entries]
    return RowArrays(
        sequences=np.where(real, entries, PADDING),
        positions=np.where(real, positions, PADDING),
        places=places,
    )


def to_capacity(packed: PackedSequences, capacity: Capacity) -> PackedSequences:
    """The same sequences in a pack of exactly that size, its tail covered by a dummy.

    A dummy that the pack has already grows or shrinks.

    Raises:
        InputError: The sequences, with a dummy where rows are left, do not fit.

    >>> from ringproof.reference.packing.sequences import pack
    >>> to_capacity(pack([5, 3], multiple=4), Capacity(rows=16, entries=4)).cu_seqlens_padded
    (0, 8, 12, 16, 16)
    """
    count = packed.sequences
    used, real = packed.cu_seqlens_padded[: count + 1], packed.cu_seqlens[: count + 1]
    missing = capacity.rows - used[-1]
    if missing < 0:
        problem = f"{capacity.rows} rows do not hold the {used[-1]} of the sequences"
        raise InputError("capacity.rows", f"{problem}; give more")
    unused = capacity.entries - count
    if unused < (missing > 0):
        needed = f"{count} sequences and a dummy" if missing else f"{count} sequences"
        problem = f"{capacity.entries} entries do not hold {needed}"
        raise InputError("capacity.entries", f"{problem}; give more")
    return replace(
        packed,
        cu_seqlens=real + real[-1:] * unused,
        cu_seqlens_padded=used + (capacity.rows,) * unused,
        max_seqlen=capacity.rows,
    )


def padding_pack(capacity: Capacity) -> PackedSequences:
    """Return a pack of that size without any sequence: one dummy, and unused entries."""
    return PackedSequences(
        cu_seqlens=(0,) * (capacity.entries + 1),
        cu_seqlens_padded=(0,) + (capacity.rows,) * capacity.entries,
        max_seqlen=capacity.rows,
        sequences=0,
    )


@dataclass(frozen=True)
class RankCapacity:
    """A fixed size for the packs of every CP size: so many rows on each rank.

    Args:
        rows: Rows on each rank of a group.
        entries: Entries of a pack, a dummy included.
        overflow: ``error``, or ``eager``: a pack that does not fit stays as it is.
    """

    rows: int
    entries: int
    overflow: str = "error"

    def of_group(self, size: int) -> Capacity:
        """What a pack over so many ranks has."""
        return Capacity(rows=self.rows * size, entries=self.entries)

    def has(self, packed: PackedSequences, size: int) -> bool:
        """Whether a pack over so many ranks is of that size."""
        return self.of_group(size) == Capacity(rows=packed.rows, entries=len(packed.lengths))

    def check_longest(self, longest: int, size: int, multiple: int) -> None:
        """Refuse a sequence that does not fit, before a step needs it.

        Args:
            longest: Tokens of the longest sequence.
            size: Ranks of the largest CP group.
            multiple: Divisor of a sequence's rows on one rank.

        Raises:
            InputError: It does not fit, unless overflow is eager.
        """
        rows = round_up(longest, size * multiple) // size
        if rows > self.rows and self.overflow == "error":
            problem = f"the longest sequence has {rows:,} rows on each of {size} CP ranks"
            remedy = "raise it, or use --graphs-overflow eager"
            raise InputError("graph_rows", f"{problem}, and the graphs have {self.rows}; {remedy}")

    def fitted(self, packed: PackedSequences, size: int) -> PackedSequences | None:
        """Return the pack at capacity, or ``None`` if it does not fit and overflow is eager.

        Raises:
            InputError: It does not fit; names what is too small.
        """
        used = packed.cu_seqlens_padded[packed.sequences]
        entries = packed.sequences + (used < self.rows * size)
        large = (
            ("graph_rows", self.rows, used // size, "rows on a rank"),
            ("graph_sequences", self.entries, entries, "entries, a dummy included"),
        )
        for name, capacity, needed, what in large:
            if needed <= capacity:
                continue
            if self.overflow == "eager":
                return None
            problem = f"a pack of CP size {size} has {needed:,} {what}, and the graphs {capacity}"
            raise InputError(name, f"{problem}; raise it, or use --graphs-overflow eager")
        return to_capacity(packed, self.of_group(size))
