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
    """The sequences of one global batch, longest first, with their costs.

    Attributes:
        order: Sequence ids, longest first, ties by id.
        lengths: Their lengths.
        kind: For each, its column in the two tables: equal lengths share one.
        ticks: Cost per group size (row) and kind.
        tokens: Padded tokens per rank, likewise.
        overhead: Ticks of a group whatever is in it, per size.
        microbatch_overhead: Ticks of a microbatch whatever is in it.
        tick: What one tick is worth in the cost model's unit; a power of two.
        sizes: The group sizes.
    """

    order: IntArray
    lengths: IntArray
    kind: IntArray
    ticks: IntArray
    tokens: IntArray
    overhead: IntArray
    microbatch_overhead: int
    tick: float
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.order)

    def items(self, members: IntArray, chain: Sequence[int]) -> Items:
        """Some of the sequences, given by their places in `order`, for the sizes of a chain."""
        kinds, rows = self.kind[members], [self.sizes.index(size) for size in chain]
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
    widest = np.array(domain.cp_sizes, dtype=np.float64)[:, None]
    # Only a maximum and exponents: exact, so that the tick is the same on every machine.
    overhead = [model.group_overhead(size) for size in domain.cp_sizes]
    groups = max(size * time for size, time in zip(domain.cp_sizes, overhead, strict=True))
    lasting = max(groups, domain.ranks * model.microbatch_overhead)
    heaviest = max(float((values * widest).max()), lasting)
    bits = math.frexp(heaviest)[1] + len(lengths).bit_length()
    tick = 2.0 ** (bits - _TICK_BITS)
    ticks = np.rint(values / tick).astype(np.int64)
    tokens = np.stack([domain.rank_tokens(distinct, size) for size in domain.cp_sizes])
    return Batch(
        order=order,
        lengths=longest_first,
        kind=kind,
        ticks=ticks,
        tokens=tokens,
        overhead=np.array([round(time / tick) for time in overhead], np.int64),
        microbatch_overhead=round(model.microbatch_overhead / tick),
        tick=tick,
        sizes=domain.cp_sizes,
    )
