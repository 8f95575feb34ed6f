"""The ranks a planner may use, the groups that exist on them, and the token budget of a rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ringproof.errors import InputError, shown

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
            of one rank, too.

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
            problem = f"{self.max_tokens_per_rank} is less than {self.rank_multiple}"
            why = "to whose multiples sequences are padded; raise it"
            raise InputError("max_tokens_per_rank", f"{problem}, {why}")
        if not self.cp_sizes:
            raise InputError("cp_sizes", "there is no group size; allow at least one")
        for size in self.cp_sizes:
            _check_divides("cp_sizes", size, self.ranks)
        if tuple(sorted(set(self.cp_sizes))) != self.cp_sizes:
            problem = f"{self.cp_sizes} is not ascending; sort the sizes, each once"
            raise InputError("cp_sizes", problem)

    @property
    def rows_per_rank(self) -> int:
        """Rows that a rank can hold in one microbatch: the budget, rounded down."""
        return self.max_tokens_per_rank // self.rank_multiple * self.rank_multiple

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that fits: the whole budget of the largest group."""
        return self.cp_sizes[-1] * self.rows_per_rank

    @cached_property
    def nested_sizes(self) -> tuple[tuple[int, ...], ...]:
        """The maximal selections of `cp_sizes` in which each size divides the next."""
        return nested(self.cp_sizes)

    def rank_rows(self, lengths: Any, size: int) -> Any:
        """Rows, padding included, that each rank of a group of ``size`` holds of each sequence.

        ``lengths`` is an array, or one length.
        """
        unit = self.rank_multiple
        return -(-lengths // (size * unit)) * unit


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InputError(name, f"{value} is less than 1; give a positive number")


def _check_ranks(ranks: int) -> None:
    _at_least_one("ranks", ranks)
    if ranks > MAX_RANKS:
        problem = f"{ranks:,} ranks are more than {MAX_RANKS:,}; give one DP x CP domain"
        raise InputError("ranks", problem)


def _check_divides(field: str, size: int, ranks: int) -> None:
    if size < 1 or ranks % size:
        remedy = f"choose from {', '.join(map(str, divisors(ranks)))}"
        raise InputError(field, f"{size} does not divide the domain of {ranks} ranks; {remedy}")


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
            raise InputError("cp-sizes", f"{shown(spec)} is not a list of group sizes; {remedy}")
        found = list(map(int, parts))
        for size in found:
            _check_divides("cp-sizes", size, ranks)
    sizes = tuple(sorted({size for size in found if size >= minimum}))
    if not sizes:
        problem = f"{minimum} leaves no group size; choose at most {ranks}, or other --cp-sizes"
        raise InputError("min-cp", problem)
    return sizes


def nested(sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The maximal selections in which each size divides the next: none can be extended.

    Laid side by side, largest first, groups of one such selection always start at aligned offsets.
    Groups of another mixture may not: of 4, 4, 3, 1 on 12 ranks, the 3 would start at 8.

    >>> nested((1, 2, 3, 6))
    ((1, 2, 6), (1, 3, 6))
    """
    found: list[tuple[int, ...]] = []

    def extend(chosen: tuple[int, ...]) -> None:
        last = chosen[-1] if chosen else 0
        larger = [size for size in sizes if not last or (size > last and not size % last)]
        follow = [one for one in larger if not any(one > o and not one % o for o in larger)]
        if not follow:
            found.append(chosen)
        for size in follow:
            extend((*chosen, size))

    extend(())
    return tuple(found)
