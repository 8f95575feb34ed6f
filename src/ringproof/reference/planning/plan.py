"""A plan: which sequences run on which ranks in which microbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VERSION = 1


@dataclass(frozen=True)
class Group:
    """Ranks ``[first_rank, first_rank + size)`` and the sequences they share.

    Without sequences it is a declared dummy: its ranks run on padding alone.
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


@dataclass(frozen=True)
class Microbatch:
    """Groups that together hold every rank of the domain once."""

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
                {"groups": [_group_json(group) for group in microbatch.groups]}
                for microbatch in self.microbatches
            ],
            "metrics": _metrics_json(self.metrics),
        }


def _group_json(group: Group) -> dict[str, Any]:
    data: dict[str, Any] = {"ranks": list(group.ranks), "sequences": list(group.sequences)}
    return {**data, "dummy": True} if group.dummy else data


def _metrics_json(metrics: Metrics) -> dict[str, Any]:
    return {
        "unit": metrics.unit,
        "makespan": metrics.makespan,
        "lower_bound": metrics.lower_bound,
        "ratio": metrics.ratio,
        "padding_fraction": metrics.padding_fraction,
        "cp_histogram": {str(size): count for size, count in sorted(metrics.cp_histogram.items())},
        "planning_seconds": metrics.planning_seconds,
    }
