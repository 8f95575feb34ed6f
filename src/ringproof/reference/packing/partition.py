"""Partitions of a sequence over the ranks of a CP group.

``contiguous`` gives rank ``r`` of ``N`` the ``r``-th of ``N`` equal chunks. ``zigzag`` cuts the
sequence into ``2N`` chunks and gives rank ``r`` chunk ``r`` and chunk ``2N-1-r``: under a causal
mask an early chunk attends to few keys and a late one to many, and every such pair attends to the
same number. Worked table, 16 tokens over 4 ranks:

    rank   contiguous   zigzag
    0      [0, 4)       [0, 2) [14, 16)
    1      [4, 8)       [2, 4) [12, 14)
    2      [8, 12)      [4, 6) [10, 12)
    3      [12, 16)     [6, 10)

Local rows are the chunks of a rank in ascending order, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringproof.errors import InputError, check_name

PARTITIONS = ("zigzag", "contiguous")


@dataclass(frozen=True, order=True)
class Span:
    """Half-open range ``[start, stop)`` of token positions.

    Args:
        start: First position.
        stop: One past the last; larger than ``start``.
    """

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def index(self) -> slice:
        """The span as an index of a tensor."""
        return slice(self.start, self.stop)


def check_partition(partition: str) -> None:
    """Refuse an unknown partition by an ``InputError``."""
    check_name("partition", partition, PARTITIONS)


def padding_multiple(size: int, partition: str) -> int:
    """Return the multiple of rows to which a packed sequence is padded: whole chunks on each rank.

    Source: Transformer Engine's ``thd_partition_indices_kernel``.

    Raises:
        InputError: An unknown partition.

    >>> padding_multiple(4, "zigzag"), padding_multiple(1, "zigzag")
    (8, 1)
    """
    check_partition(partition)
    return size * (2 if partition == "zigzag" and size > 1 else 1)


def round_up(rows: int, multiple: int) -> int:
    """Return the smallest multiple that is not below ``rows``.

    >>> round_up(17, 8), round_up(16, 8), round_up(0, 8)
    (24, 16, 0)
    """
    return -(-rows // multiple) * multiple


def check_divisible(seq_len: int, size: int, partition: str) -> None:
    """Refuse a sequence that cannot be cut evenly.

    Raises:
        InputError: An unknown partition, or a length that is not a multiple of ``2 * size``
            (zigzag) or ``size`` (contiguous).
    """
    check_partition(partition)
    multiple = 2 * size if partition == "zigzag" else size
    if seq_len < multiple or seq_len % multiple:
        problem = f"{seq_len} tokens cannot be divided {partition} over {size} CP ranks"
        padded = -(-max(seq_len, 1) // multiple) * multiple
        remedy = f"pad the sequence to {padded}, a multiple of {multiple}"
        raise InputError("seq_len", f"{problem}; {remedy}")


def rank_spans(seq_len: int, size: int, rank: int, partition: str) -> tuple[Span, ...]:
    """Positions held by one rank, ascending, neighbours joined.

    Raises:
        InputError: See :func:`check_divisible`.

    >>> rank_spans(16, 4, 1, "zigzag")
    (Span(start=2, stop=4), Span(start=12, stop=14))
    """
    check_divisible(seq_len, size, partition)
    if partition == "contiguous":
        chunk = seq_len // size
        return (Span(rank * chunk, (rank + 1) * chunk),)
    chunk = seq_len // (2 * size)
    mirror = 2 * size - 1 - rank
    return join(Span(c * chunk, (c + 1) * chunk) for c in (rank, mirror))


def join(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The spans in ascending order, neighbours that touch joined.

    >>> join([Span(4, 6), Span(0, 2), Span(2, 4)])
    (Span(start=0, stop=6),)
    """
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and joined[-1].stop == span.start:
            joined[-1] = Span(joined[-1].start, span.stop)
        else:
            joined.append(span)
    return tuple(joined)
