"""A plan: which sequences run on which ranks in which microbatch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ringproof.reference.planning.domain import Domain

VERSION = 1


class Group(NamedTuple):
    """Ranks ``[first_rank, first_rank + size)`` of the domain, and the sequences they share.

    Sequences are indices into ``Plan.lengths``. Without sequences the group is a declared dummy:
    its ranks run on padding alone. A named tuple, because it is made four times as fast as a frozen
    dataclass, and a plan may have a million.
    """

    first_rank: int
    size: int
    sequences: tuple[int, ...]

    @property
    def dummy(self) -> bool:
        """Whether the group has no sequences."""
        return not self.sequences

    @property
    def ranks(self) -> range:
        """The ranks, in order."""
        return range(self.first_rank, self.first_rank + self.size)

    def as_json(self) -> dict[str, Any]:
        """The group as plain data."""
        data = {"ranks": list(self.ranks), "sequences": list(self.sequences)}
        return {**data, "dummy": True} if self.dummy else data


@dataclass(frozen=True)
class Microbatch:
    """CP groups that run at the same time and together hold every rank of the domain once.

    On a rank, a microbatch is the ``PackedBatch`` of its group.
    """

    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Metrics:
    """The measures of a plan.

    Attributes:
        unit: Unit of the times: ``seconds``, or what the cost model counts.
        makespan: Length of the iteration under the objective.
        lower_bound: A length that no plan can be shorter than.
        padding_fraction: Fraction of the tokens in groups that is padding.
        cp_histogram: Number of sequences by group size.
        planning_seconds: Time that planning took.
    """

    unit: str
    makespan: float
    lower_bound: float
    padding_fraction: float
    cp_histogram: Mapping[int, int]
    planning_seconds: float

    @property
    def ratio(self) -> float:
        """Makespan over lower bound; at least 1."""
        return self.makespan / self.lower_bound if self.lower_bound > 0 else 1.0

    def as_json(self) -> dict[str, Any]:
        """The measures as plain data."""
        histogram = {str(size): count for size, count in sorted(self.cp_histogram.items())}
        return {**vars(self), "ratio": self.ratio, "cp_histogram": histogram}


@dataclass(frozen=True)
class Plan:
    """One global batch, planned."""

    ranks: int
    max_tokens_per_rank: int
    cp_sizes: tuple[int, ...]
    lengths: Sequence[int]
    microbatches: tuple[Microbatch, ...]
    metrics: Metrics

    def as_json(self) -> dict[str, Any]:
        """The plan as plain data; the schema is in the documentation of the planner."""
        return {
            "version": VERSION,
            "ranks": self.ranks,
            "max_tokens_per_rank": self.max_tokens_per_rank,
            "cp_sizes": list(self.cp_sizes),
            "lengths": [int(length) for length in self.lengths],
            "microbatches": [
                {"groups": [group.as_json() for group in microbatch.groups]}
                for microbatch in self.microbatches
            ],
            "metrics": self.metrics.as_json(),
        }


def build_plan(
    lengths: Sequence[int],
    domain: Domain,
    microbatches: Sequence[Microbatch],
    *,
    times: tuple[str, float, float],
    started: float,
    tokens: int,
) -> Plan:
    """Build a plan, and measure its group sizes.

    Args:
        lengths: Tokens of each sequence.
        domain: Ranks, group sizes and budget.
        microbatches: In the order they run.
        times: Unit of the times, makespan and lower bound.
        started: ``time.perf_counter()`` when planning began.
        tokens: Number of tokens in all groups together, padding included.
    """
    histogram = Counter[int]()
    for microbatch in microbatches:
        for group in microbatch.groups:
            if group.sequences:
                histogram[group.size] += len(group.sequences)
    metrics = Metrics(
        *times,
        padding_fraction=1 - sum(lengths) / tokens,
        cp_histogram=dict(sorted(histogram.items())),
        planning_seconds=time.perf_counter() - started,
    )
    budget, sizes = domain.max_tokens_per_rank, domain.cp_sizes
    return Plan(domain.ranks, budget, sizes, tuple(lengths), tuple(microbatches), metrics)
