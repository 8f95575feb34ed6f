"""Tabulate the cost of each sequence on groups of each size, as integers.

Every rank plans for itself and all must agree to the last bit. So a cost function may use only
elementwise operations that IEEE 754 defines exactly (+ - * / sqrt, minimum, maximum), its values
are rounded to integers at once, and all sums are sums of integers, equal in any order.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import neg
from typing import Any, Protocol

from ringproof.reference.planning.domain import Domain
from ringproof.reference.planning.elementwise import choose, columns, minimum, to_whole

_COST_BITS = 60
"""Costs are scaled so that no sum over a whole batch, times its ranks, needs more bits."""
_NEVER = (1 << 63) - 1
"""Cost at a size that cannot hold the sequence."""


class CostModel(Protocol):
    """Time of sequences on a group.

    Attributes:
        unit: ``seconds``, or the name of what is counted instead.
        microbatch_overhead: Time each microbatch costs whatever is in it, in `unit`.
    """

    @property
    def unit(self) -> str:
        """See the class."""

    @property
    def microbatch_overhead(self) -> float:
        """See the class."""

    def cost(self, lengths: Any, size: int) -> Any:
        """Forward and backward time that each sequence adds to a group of ``size`` ranks.

        ``lengths`` is an array of integers or one integer, and so is the result of floats. Must
        not decrease with the length.
        """

    def group_overhead(self, size: int) -> float:
        """What a group of that size costs whatever is in it: the latencies of its messages."""


@dataclass(frozen=True)
class AttentionOnly:
    """Upstream's measure: squared length over group size; nothing else costs anything.

    Source: ``workload`` in ``next_hdp_group_packing_aware`` of Megatron-LM's dev branch.
    """

    unit: str = "squared tokens per rank"
    microbatch_overhead: float = 0.0

    def cost(self, lengths: Any, size: int) -> Any:
        """See `CostModel.cost`."""
        as_float = lengths * 1.0
        return as_float * as_float / size

    def group_overhead(self, size: int) -> float:
        """See `CostModel.group_overhead`."""
        del size
        return 0.0


@dataclass(frozen=True)
class Batch:
    """The sequences of one global batch, longest first, with their costs on a domain.

    Sequences of equal length share a column of the tables; ``kind`` is the number of the column.

    Attributes:
        domain: Ranks and limits.
        order: Sequence ids, longest first, ties by id.
        kind: The column of each sequence, in that order.
        distinct: The length of each column, descending.
        costs, tokens: Cost, and padded tokens per rank, by group size (row) and column.
        overhead: Cost of a group whatever is in it, by group size.
        microbatch_overhead: Cost of a microbatch whatever is in it.
        unit_cost: What a cost of 1 is worth in the cost model's unit; a power of two.
        work, space: The fewest costs times ranks, and tokens of all ranks together, that a sequence
            of each column takes at a size that can hold it; its part of the group's overhead
            included.
        lone_work: As ``work``, with the whole overhead of its group for a sequence of more than
            half of the budget and none for others.
        alone: Shortest time of a sequence of each column, alone in a group.
    """

    domain: Domain
    order: Sequence[int]
    kind: Sequence[int]
    distinct: Sequence[int]
    costs: list[list[int]]
    tokens: list[list[int]]
    overhead: list[int]
    microbatch_overhead: int
    unit_cost: float
    work: list[int]
    space: list[int]
    lone_work: list[int]
    alone: list[int]

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def total_work(self) -> int:
        """The fewest costs times ranks of all sequences."""
        return sum(map(self.work.__getitem__, self.kind))

    def share(self, first: int, step: int) -> Batch:
        """Every ``step``-th sequence from the place ``first`` on."""
        return replace(self, order=self.order[first::step], kind=self.kind[first::step])

    def table(self, sizes: tuple[int, ...]) -> SizeTable:
        """The costs for some of the group sizes, each of which divides the next."""
        rows = [self.domain.cp_sizes.index(size) for size in sizes]
        costs, tokens = ([table[row] for row in rows] for table in (self.costs, self.tokens))
        return SizeTable(
            sizes, costs, tokens, [self.overhead[row] for row in rows], self.kind, self.domain
        )


@dataclass(frozen=True)
class SizeTable:
    """The tables of a batch for nested group sizes. A level is the index of a size.

    Attributes:
        sizes: The group sizes, each of which divides the next.
        costs, tokens: Cost, and padded tokens per rank, by level and column.
        overhead: Cost of a group whatever is in it, by level.
        kind: The column of each sequence of the batch.
        domain: Ranks and limits.
    """

    sizes: tuple[int, ...]
    costs: list[list[int]]
    tokens: list[list[int]]
    overhead: list[int]
    kind: Sequence[int]
    domain: Domain

    @cached_property
    def first_held(self) -> list[int]:
        """The first column, which has the longest sequences, that a group holds; by level."""
        budget = self.domain.max_tokens_per_rank
        return [bisect_left(row, -budget, key=neg) for row in self.tokens]

    def lowest(self, column: int) -> int:
        """The level of the smallest size that holds a sequence of a column."""
        return next(level for level, first in enumerate(self.first_held) if first <= column)

    def time(self, level: int, members: Iterable[int]) -> int:
        """Cost of a group of that level with these sequences, given by their places."""
        row, kind = self.costs[level], self.kind
        return self.overhead[level] + sum([row[kind[place]] for place in members])

    def rows(self, level: int, members: Iterable[int]) -> int:
        """Tokens per rank of a group of that level with these sequences."""
        row, kind = self.tokens[level], self.kind
        return sum([row[kind[place]] for place in members])


def make_batch(lengths: Sequence[int], domain: Domain, model: CostModel) -> Batch:
    """Sort a batch and tabulate its costs; each distinct length is computed once."""
    ids = defaultdict[int, list[int]](list)
    for number, length in enumerate(lengths):
        ids[length].append(number)
    distinct = sorted(ids, reverse=True)
    unit_cost = _unit_cost(len(lengths), distinct[0], domain, model)
    overhead = [round(model.group_overhead(size) / unit_cost) for size in domain.cp_sizes]
    found = columns(lambda length: _costs(length, domain, model, overhead, unit_cost), distinct)
    count = len(domain.cp_sizes)
    work, space, lone_work, alone = found[2 * count :]
    return Batch(
        domain=domain,
        order=list(chain.from_iterable(ids[length] for length in distinct)),
        kind=[column for column, length in enumerate(distinct) for _ in ids[length]],
        distinct=distinct,
        costs=found[:count],
        tokens=found[count : 2 * count],
        overhead=overhead,
        microbatch_overhead=round(model.microbatch_overhead / unit_cost),
        unit_cost=unit_cost,
        work=work,
        space=space,
        lone_work=lone_work,
        alone=alone,
    )


def _unit_cost(count: int, longest: int, domain: Domain, model: CostModel) -> float:
    """A power of two, from a maximum and exponents alone: the same on every machine."""
    times_size = columns(lambda n: [model.cost(n, s) * s for s in domain.cp_sizes], [longest])
    costs = [row[0] for row in times_size]
    overheads = [model.group_overhead(size) * size for size in domain.cp_sizes]
    largest = max(*costs, *overheads, domain.ranks * model.microbatch_overhead)
    return 2.0 ** (math.frexp(largest)[1] + count.bit_length() - _COST_BITS)


def _costs(
    length: Any, domain: Domain, model: CostModel, overhead: Sequence[int], unit_cost: float
) -> list[Any]:
    """Costs and tokens by size, and the four minima over sizes that `Batch` has."""
    budget = domain.max_tokens_per_rank
    costs, tokens = [], []
    work, space, lone_work, alone = _NEVER, _NEVER, _NEVER, _NEVER
    for size, extra in zip(domain.cp_sizes, overhead, strict=True):
        cost, rows = to_whole(model.cost(length, size) / unit_cost), domain.rank_rows(length, size)
        costs.append(cost)
        tokens.append(rows)
        held = rows <= budget
        charged = (cost + shared_overhead(extra, rows, budget)) * size
        lone = (cost + choose(2 * rows > budget, extra, 0)) * size
        work = minimum(work, choose(held, charged, _NEVER))
        space = minimum(space, choose(held, rows * size, _NEVER))
        lone_work = minimum(lone_work, choose(held, lone, _NEVER))
        alone = minimum(alone, choose(held, cost + extra, _NEVER))
    return [*costs, *tokens, work, space, lone_work, alone]


def shared_overhead(overhead: int, rows: Any, budget: int) -> Any:
    """The part of a group's overhead that a sequence is charged, by its tokens.

    The tokens of one group are within the budget, so the parts of its sequences, rounded down, are
    together never more than the overhead.
    """
    return to_whole(minimum(rows, budget) * (overhead / budget * (1 - 1e-9)) // 1)
