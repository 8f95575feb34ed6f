"""Shards of a pack: its rows on each rank of a CP group.

``zigzag`` cuts every entry of the pack by itself into ``2 * CP`` chunks of its padded length and
gives rank ``r`` chunks ``r`` and ``2 * CP - 1 - r`` of each, which is what Transformer Engine's
``thd_partition_indices_kernel`` does. ``contiguous`` cuts the pack as a whole into ``CP`` equal
runs, wherever sequences begin: Transformer Engine's no-load-balance partition, Megatron-LM's
``cp_partition_mode="contiguous"``. On a group of one rank both are the pack itself.

Worked table, entries of 8 and 16 rows over 2 ranks:

    rank   zigzag                             contiguous
    0      [0, 2) [6, 8) [8, 12) [20, 24)     [0, 12)
    1      [2, 6) [12, 20)                    [12, 24)

Local rows are in ascending order, so each entry's rows are neighbours on every rank, and its real
ones come first.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringproof.errors import InputError
from ringproof.reference.packing.partition import (
    Span,
    check_divisible,
    check_partition,
    join,
    rank_spans,
)
from ringproof.reference.packing.sequences import PackedSequences


@dataclass(frozen=True)
class Sharding:
    """Rows over a CP group, and which of them belong to one sequence.

    Args:
        shards: Positions held by each rank, ascending; together all rows, each once.
        sequences: Positions of real tokens, one span for each sequence that has any, ascending.
            A row outside of them is padding: nothing sees it, and it sees nothing.
    """

    shards: tuple[tuple[Span, ...], ...]
    sequences: tuple[Span, ...]

    def neighbours(self, inner_size: int, outer_rank: int) -> tuple[tuple[Span, ...], ...]:
        """Shards of one inner group: the ``outer_rank``-th run of ``inner_size`` ranks."""
        first = outer_rank * inner_size
        return self.shards[first : first + inner_size]

    def gathered(self, inner_size: int) -> Sharding:
        """The rows over the outer ranks, once each inner group has gathered its own."""
        return Sharding(
            tuple(
                join(span for shard in self.neighbours(inner_size, outer) for span in shard)
                for outer in range(len(self.shards) // inner_size)
            ),
            self.sequences,
        )

    @classmethod
    def of_sequence(cls, seq_len: int, size: int, partition: str) -> Sharding:
        """One sequence without padding (BSHD: the same for each sequence of the batch).

        Raises:
            InputError: The sequence cannot be cut evenly.
        """
        check_divisible(seq_len, size, partition)
        shards = tuple(rank_spans(seq_len, size, rank, partition) for rank in range(size))
        return cls(shards, (Span(0, seq_len),))

    @classmethod
    def of_pack(cls, packed: PackedSequences, size: int, partition: str) -> Sharding:
        """The entries of a pack (THD).

        Raises:
            InputError: An entry (zigzag) or the pack (contiguous) cannot be cut evenly.
        """
        check_pack(packed, size, partition)
        shards = tuple(_spans(packed, size, rank, partition) for rank in range(size))
        return cls(shards, packed.real_spans)


def check_pack(packed: PackedSequences, size: int, partition: str) -> None:
    """Refuse a pack that cannot be cut evenly.

    Raises:
        InputError: An unknown partition, an entry whose rows are not a multiple of ``2 * size``
            (zigzag), or a pack whose rows are not a multiple of ``size`` (contiguous).
    """
    check_partition(partition)
    if partition == "contiguous" and packed.rows % size:
        problem = f"{packed.rows} rows cannot be divided contiguously over {size} CP ranks"
        remedy = f"pack with multiple={size}"
        raise InputError("cu_seqlens_padded", f"{problem}; {remedy}")
    if partition == "zigzag" and size > 1:
        for index, rows in enumerate(packed.padded_lengths):
            if rows % (2 * size):
                problem = f"{rows} rows of entry {index} cannot be divided zigzag over {size} CP"
                remedy = f"pack with multiple={2 * size}"
                raise InputError("cu_seqlens_padded", f"{problem} ranks; {remedy}")


def pack_spans(packed: PackedSequences, size: int, rank: int, partition: str) -> tuple[Span, ...]:
    """Positions of a pack held by one rank, ascending, neighbours joined.

    Raises:
        InputError: See :func:`check_pack`.
    """
    check_pack(packed, size, partition)
    return _spans(packed, size, rank, partition)


def _spans(packed: PackedSequences, size: int, rank: int, partition: str) -> tuple[Span, ...]:
    if size == 1:
        return (Span(0, packed.rows),)
    if partition == "contiguous":
        return rank_spans(packed.rows, size, rank, partition)
    return join(
        Span(first + chunk * rows, first + (chunk + 1) * rows)
        for first, length in zip(packed.cu_seqlens_padded, packed.padded_lengths, strict=False)
        for rows in (length // (2 * size),)
        for chunk in (rank, 2 * size - 1 - rank)
        if rows
    )
