"""A run on many ranks against the same on one: how far apart, at worst."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ringproof.harness.cluster import Cluster
from smoke import training_steps
from smoke.training_steps import Run

TOLERANCE = 1e-12
Record = Callable[[str, object], None]


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference, relative to the largest number of the tensor."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-300))


def compare(cluster: Cluster, run: Run) -> dict[str, float]:
    """Distances of gradients, parameters, losses with norms, and an evaluation."""
    reference = training_steps.alone(run)
    values = cluster.run(training_steps.train, world_size=run.layout.world_size, run=run).values
    alone = cluster.run(training_steps.train, world_size=1, run=reference).values
    worst: dict[str, float] = {}
    for what in ("gradients", "parameters"):
        ours = training_steps.assemble(run, values, what)
        theirs = training_steps.assemble(reference, alone, what)
        assert ours
        assert ours.keys() == theirs.keys()
        worst[what] = max(distance(ours[name], theirs[name]) for name in theirs)
    for what in ("losses", "norms", "evaluation"):
        ours_series = torch.tensor([value[what] for value in values], dtype=torch.float64)
        assert (ours_series == ours_series[0]).all(), f"ranks disagree about {what}"
        expected = torch.tensor(alone[0][what], dtype=torch.float64)
        assert expected.max() > 0
        worst[what] = distance(ours_series[0], expected)
    return worst


def prove(cluster: Cluster, run: Run, record: Record) -> None:
    """The run is that of one rank."""
    worst = compare(cluster, run)
    # AdamW divides by the root of a gradient's square: rounding grows where gradients are tiny.
    moved = worst.pop("parameters")
    record("max_relative_difference", max(worst.values()))
    assert max(worst.values()) <= TOLERANCE, worst
    assert moved <= 100 * TOLERANCE, moved


def must_differ(cluster: Cluster, run: Run, what: str) -> Any:
    """Negative control: the same comparison is red, where the fault is expected to show."""
    worst = compare(cluster, run)
    assert worst[what] > 1e-6, worst
    return worst
