"""Tabulate the cost of each sequence on groups of each size, as integers.

Every rank plans for itself and all must agree to the last bit. So a cost function may use only
elementwise operations that IEEE 754 defines exactly (+ - * / sqrt, minimum, maximum), its values
are rounded to integer ticks at once, and all sums are sums of integers, equal in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ringproof.reference.planning.domain import Domain, IntArray

FloatArray = npt.NDArray[np.float64]

_TICK_BITS = 60
"""No sum of ticks times ranks over a whole batch needs more."""


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

    def cost(self, lengths: IntArray, size: int) -> FloatArray:
        """Forward and backward time that each sequence adds to a group of ``size`` ranks.

        Must not decrease with the length.
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

    def cost(self, lengths: IntArray, size: int) -> FloatArray:
        """See `CostModel.cost`."""
        as_float = lengths.astype(np.float64)
        return as_float * as_float / size

    def group_overhead(self, size: int) -> float:
        """See `CostModel.group_overhead`."""
        del size
        return 0.0


@dataclass(frozen=True)
class Batch:
    """The sequences of one global batch, longest first, with their costs on a domain.

    Attributes:
        domain: Ranks and limits.
        order: Sequence ids, longest first, ties by id.
        kind: For each, its column in the tables: equal lengths share one.
        distinct: The length of each kind.
        ticks, tokens: Cost, and padded tokens per rank, by group size (row) and kind.
        overhead: Ticks of a group whatever is in it, by group size.
        microbatch_overhead: Ticks of a microbatch whatever is in it.
        tick: What one tick is worth in the cost model's unit; a power of two.
        work, space: The fewest rank-ticks, and tokens of all ranks together, that a sequence of
            each kind costs at a size that can hold it; its part of the group's overhead included.
    """

    domain: Domain
    order: IntArray
    kind: IntArray
    distinct: IntArray
    ticks: IntArray
    tokens: IntArray
    overhead: IntArray
    microbatch_overhead: int
    tick: float
    work: IntArray
    space: IntArray

    def __len__(self) -> int:
        return len(self.order)

    @property
    def total_work(self) -> int:
        """The fewest rank-ticks of all sequences."""
        return int(self.work[self.kind].sum())

    def rows(self, sizes: Sequence[int]) -> list[int]:
        """The rows of the tables for some of the group sizes."""
        return [self.domain.cp_sizes.index(size) for size in sizes]

    def items(self, members: IntArray, chain: Sequence[int]) -> Items:
        """Some of the sequences, given by their places in `order`, for the sizes of a chain."""
        kinds, rows = self.kind[members], self.rows(chain)
        first, last = rows[0], rows[-1] + 1
        if len(rows) == last - first:  # neighbours: a view
            tables = [table[first:last].take(kinds, axis=1) for table in (self.ticks, self.tokens)]
        else:  # row by row, because a selection would copy the whole table
            tables = [
                np.stack([table[row].take(kinds) for row in rows])
                for table in (self.ticks, self.tokens)
            ]
        ticks, tokens = tables
        return Items(members, tuple(chain), ticks, tokens, self.overhead[rows])


@dataclass(frozen=True)
class Items:
    """Sequences to be placed, longest first.

    Attributes:
        members: Their places in `Batch.order`, ascending.
        sizes: Group sizes, each dividing the next.
        ticks, tokens: Cost and padded tokens per rank, by size (row) and sequence; a row never
            increases.
        overhead: Ticks of a group whatever is in it, by size.
    """

    members: IntArray
    sizes: tuple[int, ...]
    ticks: IntArray
    tokens: IntArray
    overhead: IntArray

    def __len__(self) -> int:
        return len(self.members)


def make_batch(lengths: IntArray, domain: Domain, model: CostModel) -> Batch:
    """Sort a batch and tabulate its costs; each distinct length is computed once."""
    order = np.argsort(-lengths, kind="stable")
    longest_first = lengths[order]
    starts = np.flatnonzero(np.diff(longest_first, prepend=longest_first[0] + 1))
    distinct = longest_first[starts]
    kind = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(lengths)))
    values = np.stack([model.cost(distinct, size) for size in domain.cp_sizes])
    sizes = np.array(domain.cp_sizes)[:, None]
    # Only a maximum and exponents: exact, so that the tick is the same on every machine.
    times = [model.group_overhead(size) for size in domain.cp_sizes]
    groups = max(size * time for size, time in zip(domain.cp_sizes, times, strict=True))
    lasting = max(groups, domain.ranks * model.microbatch_overhead)
    heaviest = max(float((values * sizes.astype(np.float64)).max()), lasting)
    tick = 2.0 ** (math.frexp(heaviest)[1] + len(lengths).bit_length() - _TICK_BITS)
    ticks = np.rint(values / tick).astype(np.int64)
    tokens = np.stack([domain.rank_rows(distinct, size) for size in domain.cp_sizes])
    overhead = np.array([round(time / tick) for time in times], np.int64)
    fits = tokens <= domain.max_tokens_per_rank
    work, space = (
        np.where(fits, table * sizes, np.iinfo(np.int64).max).min(axis=0)
        for table in (ticks + shared_overhead(overhead, tokens, domain), tokens)
    )
    return Batch(
        domain=domain,
        order=order,
        kind=kind,
        distinct=distinct,
        ticks=ticks,
        tokens=tokens,
        overhead=overhead,
        microbatch_overhead=round(model.microbatch_overhead / tick),
        tick=tick,
        work=work,
        space=space,
    )


def shared_overhead(overhead: IntArray, tokens: IntArray, domain: Domain) -> IntArray:
    """A part of a group's overhead for each sequence, by group size (row) and kind.

    The parts are proportional to tokens. The tokens of one group are within the budget, so the
    parts of its sequences are together never more than the overhead.
    """
    budget = domain.max_tokens_per_rank
    share = np.minimum(tokens, budget) / budget * (1 - 1e-9)  # rounded down
    return np.asarray(overhead[:, None] * share, np.int64)
