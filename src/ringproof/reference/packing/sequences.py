"""Packed sequences (THD): the start of each sequence, and the number of its real rows.

A pack is one tensor of rows ``[T, …]``. Sequence ``i`` has the rows ``cu_seqlens_padded[i]`` to
``cu_seqlens_padded[i + 1]``; the first ``cu_seqlens[i + 1] - cu_seqlens[i]`` of them are real,
the rest is padding. These are Transformer Engine's two arrays (``cu_seqlens_q`` and
``cu_seqlens_q_padded`` of Megatron-LM's ``PackedSeqParams``). Worked table, lengths 5, 1, 17
padded to multiples of 8, in a pack of 64 rows with a dummy tail and room for five sequences:

    entry   rows        real   what
    0       [0, 8)      5      sequence
    1       [8, 16)     1      sequence
    2       [16, 40)    17     sequence
    3       [40, 64)    0      dummy: the tail
    4       [64, 64)    0      unused

    cu_seqlens         0 5 6 23 23 23
    cu_seqlens_padded  0 8 16 40 64 64

A dummy has no real token: nothing is computed for it. (Megatron-LM's ``append_dummy_seq`` counts
its rows as real on the dev branch, and as padding in pull request 5618.)
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from ringproof.errors import InputError, shown
from ringproof.reference.packing.partition import Span, round_up

MOST_ROWS = 2**31 - 1  # kernels take cu_seqlens as int32


@dataclass(frozen=True, kw_only=True)
class PackedSequences:
    """One pack. The constructor checks all fields; none is computed from the shape of a tensor.

    Args:
        cu_seqlens: Real tokens before each entry, and in total. Starts at 0.
        cu_seqlens_padded: Rows before each entry, and in total. Starts at 0.
        max_seqlen: At least the longest entry's rows; a graph's capacity may be larger.
        sequences: Number of entries that are sequences, the first ones. The others hold no real
            token: a dummy that covers the rows behind the last sequence's own padding, or unused
            places of a fixed capacity.

    Raises:
        InputError: Anything of the above does not hold, or there are no rows, or more than
            ``2**31 - 1``.
    """

    cu_seqlens: tuple[int, ...]
    cu_seqlens_padded: tuple[int, ...]
    max_seqlen: int
    sequences: int

    def __post_init__(self) -> None:
        _check_cumulative("cu_seqlens", self.cu_seqlens)
        _check_cumulative("cu_seqlens_padded", self.cu_seqlens_padded)
        if len(self.cu_seqlens) != len(self.cu_seqlens_padded):
            counts = f"{len(self.cu_seqlens_padded)} numbers, and cu_seqlens {len(self.cu_seqlens)}"
            remedy = "give both one more than there are entries"
            raise InputError("cu_seqlens_padded", f"there are {counts}; {remedy}")
        for index, (real, rows) in enumerate(zip(self.lengths, self.padded_lengths, strict=True)):
            if real > rows:
                problem = f"entry {index} has {real} tokens and only {rows} rows"
                raise InputError("cu_seqlens", f"{problem}; pad it further")
        if not 0 < self.rows <= MOST_ROWS:
            problem = f"a pack has 1 to 2**31 - 1 rows, not {self.rows}"
            raise InputError("cu_seqlens_padded", f"{problem}; pack other sequences")
        if not _is_int(self.max_seqlen) or self.max_seqlen < max(self.padded_lengths):
            problem = f"{shown(self.max_seqlen)} is not an integer from {max(self.padded_lengths)}"
            raise InputError("max_seqlen", f"{problem}, the rows of the longest entry, upwards")
        self._check_sequences()

    def _check_sequences(self) -> None:
        entries = len(self.cu_seqlens) - 1
        if not _is_int(self.sequences) or not 0 <= self.sequences <= entries:
            problem = f"{shown(self.sequences)} is not a number of entries from 0 to {entries}"
            raise InputError("sequences", f"{problem}; count the sequences")
        if self.cu_seqlens[self.sequences] != self.cu_seqlens[-1]:
            problem = f"an entry after the first {self.sequences} has real tokens"
            raise InputError("sequences", f"{problem}; count all sequences")
        others = sum(rows > 0 for rows in self.padded_lengths[self.sequences :])
        if others > 1:
            problem = f"{others} entries after the {self.sequences} sequences have rows"
            raise InputError("sequences", f"{problem}; only one dummy may have rows")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Real tokens of each entry."""
        return _differences(self.cu_seqlens)

    @property
    def padded_lengths(self) -> tuple[int, ...]:
        """Rows of each entry."""
        return _differences(self.cu_seqlens_padded)

    @property
    def rows(self) -> int:
        """Rows of the whole pack, padding included."""
        return self.cu_seqlens_padded[-1]

    @property
    def tokens(self) -> int:
        """Real tokens of the whole pack."""
        return self.cu_seqlens[-1]

    @property
    def real_spans(self) -> tuple[Span, ...]:
        """The rows that hold real tokens, one span for each entry that has any."""
        return tuple(
            Span(start, start + length)
            for start, length in zip(self.cu_seqlens_padded, self.lengths, strict=False)
            if length
        )


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """A fixed size for every pack, as a CUDA graph needs it.

    Args:
        rows: Rows of the pack, over all ranks of its CP group.
        entries: Entries of the pack. A dummy tail takes one of them (Megatron-LM's
            ``thd_max_packed_sequences`` counts alike).
    """

    rows: int
    entries: int

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("entries", self.entries)):
            _check_positive(f"capacity.{name}", value)


def pack(lengths: Sequence[SupportsIndex], *, multiple: int = 1) -> PackedSequences:
    """Put sequences one after the other, each padded to a multiple of rows.

    Args:
        lengths: Real tokens of each sequence; one of 0 takes no rows.
        multiple: See :func:`~ringproof.reference.packing.partition.padding_multiple`.

    Raises:
        InputError: A negative length, or no rows at all.

    >>> pack([5, 1, 17], multiple=8)  # doctest: +NORMALIZE_WHITESPACE
    PackedSequences(cu_seqlens=(0, 5, 6, 23), cu_seqlens_padded=(0, 8, 16, 40),
                    max_seqlen=24, sequences=3)
    """
    _check_positive("multiple", multiple)
    real = [_length(index, length) for index, length in enumerate(lengths)]
    padded = [round_up(length, multiple) for length in real]
    if not sum(padded):
        raise InputError("lengths", f"{list(lengths)} has no rows to pack; give a sequence")
    return PackedSequences(
        cu_seqlens=_cumulative(real),
        cu_seqlens_padded=_cumulative(padded),
        max_seqlen=max(padded),
        sequences=len(lengths),
    )


def _length(index: int, length: SupportsIndex) -> int:
    """A sequence's length as a plain integer; numpy's are welcome."""
    if not isinstance(length, bool) and hasattr(length, "__index__"):
        value = operator.index(length)
        if 0 <= value <= MOST_ROWS:
            return value
    problem = f"{shown(length)} is not a length in [0, 2**31) (sequence {index})"
    raise InputError("lengths", f"{problem}; leave it out")


def _check_positive(name: str, value: int) -> None:
    if not _is_int(value) or value < 1:
        raise InputError(name, f"{shown(value)} is not a positive integer; give 1 or more")


def _check_cumulative(name: str, values: tuple[int, ...]) -> None:
    if not isinstance(values, tuple) or len(values) < 2 or not all(map(_is_int, values)):
        raise InputError(name, f"{shown(values)} is not a tuple of two or more integers")
    if values[0] != 0:
        raise InputError(name, f"the first number is {values[0]}; start with 0")
    for index, length in enumerate(_differences(values)):
        if length < 0:
            problem = f"entry {index} has a length of {length}"
            raise InputError(name, f"{problem}; give numbers that ascend")


def _differences(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in itertools.pairwise(values))


def _cumulative(lengths: Iterable[int]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(lengths, initial=0))


def _is_int(value: object) -> bool:
    return type(value) is int
