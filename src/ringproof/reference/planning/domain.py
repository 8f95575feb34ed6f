"""The ranks a planner may use, the groups that exist on them, and the token budget of a rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ringproof.errors import InputError

IntArray = npt.NDArray[np.int64]

MAX_RANKS = 1 << 20
ZIGZAG_CHUNKS = 2
"""Rows per rank are a multiple of this: each rank has two chunks of every sequence."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The ranks of one data parallel times context parallel domain, and its limits.

    Groups exist at aligned offsets: a group of size ``d`` starts at a multiple of ``d``.

    Args:
        ranks: Size of the domain.
        max_tokens_per_rank: Budget of a rank in one microbatch, padding included.
        cp_sizes: Group sizes that exist; ascending divisors of `ranks`.
        max_sequences: Largest number of sequences in one group (a captured graph's capacity).
        microbatch_multiple: The number of microbatches is a multiple of this (interleaved PP).
        rank_multiple: Rows of a sequence on one rank are padded to a multiple of this, with a group
            of one rank, too; see `ringproof.reference.packing.padding`.

    Raises:
        InputError: A value out of range, or a size that is not a divisor.
    """

    ranks: int
    max_tokens_per_rank: int
    cp_sizes: tuple[int, ...]
    max_sequences: int | None = None
    microbatch_multiple: int = 1
    rank_multiple: int = ZIGZAG_CHUNKS

    def __post_init__(self) -> None:
        for name in ("max_tokens_per_rank", "microbatch_multiple", "rank_multiple"):
            _at_least_one(name, getattr(self, name))
        _check_ranks(self.ranks)
        if self.max_sequences is not None:
            _at_least_one("max_sequences", self.max_sequences)
        if self.max_tokens_per_rank < self.rank_multiple:
            problem = f"less than {self.rank_multiple}, to whose multiples sequences are padded"
            raise InputError("max_tokens_per_rank", self.max_tokens_per_rank, problem, "raise it")
        if not self.cp_sizes:
            raise InputError("cp_sizes", None, "names no group size", "allow at least one")
        for size in self.cp_sizes:
            if size < 1 or self.ranks % size:
                problem = f"does not divide the domain of {self.ranks} ranks"
                raise InputError("cp_sizes", size, problem, f"choose from {divisors(self.ranks)}")
        if tuple(sorted(set(self.cp_sizes))) != self.cp_sizes:
            raise InputError("cp_sizes", self.cp_sizes, "not ascending", "sort them, each once")

    @property
    def rows_per_rank(self) -> int:
        """Rows that a rank can hold in one microbatch: the budget, rounded down."""
        return self.max_tokens_per_rank // self.rank_multiple * self.rank_multiple

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that fits: the whole budget of the largest group."""
        return self.cp_sizes[-1] * self.rows_per_rank

    @cached_property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """The maximal selections of `cp_sizes` in which each size divides the next."""
        return chains(self.cp_sizes)

    def rank_rows(self, lengths: IntArray, size: int) -> IntArray:
        """Rows, padding included, that each rank of a group of ``size`` holds of each sequence."""
        unit = self.rank_multiple
        return -(-lengths // (size * unit)) * unit


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InputError(name, value, "is less than 1", "give a positive number")


def _check_ranks(ranks: int) -> None:
    _at_least_one("ranks", ranks)
    if ranks > MAX_RANKS:
        raise InputError("ranks", ranks, f"more than {MAX_RANKS:,}", "give one DP x CP domain")


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [item for item in range(1, math.isqrt(number) + 1) if number % item == 0]
    return tuple(sorted({*small, *(number // item for item in small)}))


def choose_cp_sizes(spec: str, ranks: int, minimum: int = 1) -> tuple[int, ...]:
    """The group sizes, from ``minimum`` on, that an option names.

    ``spec`` is ``pow2`` (powers of two that divide the domain, and the domain itself, whose group
    always exists), ``divisors``, or numbers separated by commas.

    Raises:
        InputError: Another word, a size that does not divide ``ranks``, nothing left, or more ranks
            than any domain has.
    """
    _check_ranks(ranks)
    _at_least_one("min-cp", minimum)
    if spec == "pow2":
        found = [*(size for size in divisors(ranks) if size & (size - 1) == 0), ranks]
    elif spec == "divisors":
        found = list(divisors(ranks))
    else:
        parts = [part.strip() for part in spec.split(",")]
        if not all(part.isdecimal() and len(part) <= 9 for part in parts):
            remedy = "write pow2, divisors or numbers such as 1,2,4"
            raise InputError("cp-sizes", spec, "is not a list of group sizes", remedy)
        found = list(map(int, parts))
        for size in found:
            if size < 1 or ranks % size:
                problem = f"{size} does not divide the domain of {ranks} ranks"
                raise InputError("cp-sizes", spec, problem, f"choose from {divisors(ranks)}")
    sizes = tuple(sorted({size for size in found if size >= minimum}))
    if not sizes:
        remedy = f"choose at most {ranks}, or other --cp-sizes"
        raise InputError("min-cp", minimum, "leaves no group size", remedy)
    return sizes


def chains(sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The maximal selections in which each size divides the next: none can be extended.

    Laid side by side, largest first, groups of one such selection always start at aligned offsets.
    Groups of another mixture may not: of 4, 4, 3, 1 on 12 ranks, the 3 would start at 8.

    >>> chains((1, 2, 3, 6))
    ((1, 2, 6), (1, 3, 6))
    """
    found: list[tuple[int, ...]] = []

    def extend(chain: tuple[int, ...]) -> None:
        larger = [
            size for size in sizes if not chain or (size > chain[-1] and not size % chain[-1])
        ]
        follow = [
            size
            for size in larger
            if not any(size > other and not size % other for other in larger)
        ]
        if not follow:
            found.append(chain)
        for size in follow:
            extend((*chain, size))

    extend(())
    return tuple(found)
