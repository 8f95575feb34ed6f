"""Twenty optimiser steps of a small model: CP 4 as [2, 2] against a single rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringproof.cluster import Cluster
from smoke import trials
from smoke.training_matrix import (
    ONE_RANK,
    TOLERANCE,
    Series,
    Spread,
    largest_difference,
    options_of,
)

STEPS = 20
LEVELS = {"comm_type": "a2a+p2p", "ranks_per_node": 2}


def curve(cluster: Cluster, spread: Spread, fault: str = "") -> Series:
    options = options_of("qwen3-tiny", spread, steps=STEPS)
    values = cluster.run(trials.train, world_size=spread.ranks, options=options, fault=fault).values
    assert all(value.steps == values[0].steps for value in values)
    return values[0].steps


@pytest.fixture(scope="module")
def single(cluster: Cluster) -> Series:
    return curve(cluster, ONE_RANK)


def test_loss_curve_equals_single_rank(
    cluster: Cluster, single: Series, record_property: Callable[[str, object], None]
) -> None:
    parallel = curve(cluster, Spread({"cp": 4}, LEVELS, batch={"schedule": "packed"}))
    difference = largest_difference(parallel, single)
    record_property("first_loss", single[0][0])
    record_property("last_loss", single[-1][0])
    record_property("max_relative_difference", difference)
    assert single[-1][0] < 0.8 * single[0][0], "a model that learns nothing proves nothing"
    assert difference <= TOLERANCE


def test_communication_off_changes_the_curve(cluster: Cluster, single: Series) -> None:
    """Negative control: the loss still looks plausible, and the comparison still notices."""
    turns = Spread({"cp": 4}, LEVELS, batch={"forced_sizes": (4, 1)})
    broken = curve(cluster, turns, "attention-left-alone")
    assert broken[-1][0] < broken[0][0]
    assert largest_difference(broken, single) > 1e-3
