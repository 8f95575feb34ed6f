"""Twenty optimiser steps of a one-layer model: CP 4 as [2, 2] against a single rank."""

from __future__ import annotations

from collections.abc import Callable

from ringproof.harness.cluster import Cluster
from smoke import cases

STEPS, SEQ_LEN = 20, 64
# Twenty steps of AdamW in float64: differences of 1e-15 per gradient stay far below this.
TOLERANCE = 1e-9


def losses(
    cluster: Cluster, world: int, sizes: tuple[int, ...], fault: str = "none"
) -> list[float]:
    outcome = cluster.run(
        cases.train,
        world_size=world,
        steps=STEPS,
        seq_len=SEQ_LEN,
        hierarchical_sizes=sizes,
        fault=fault,
    )
    assert all(value == outcome.values[0] for value in outcome.values)
    curve: list[float] = outcome.values[0]
    assert len(curve) == STEPS
    return curve


def difference(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def test_loss_curve_equals_single_rank(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    single = losses(cluster, 1, ())
    parallel = losses(cluster, 4, (2, 2))
    record_property("first_loss", single[0])
    record_property("last_loss", single[-1])
    record_property("max_abs_difference", difference(single, parallel))
    assert single[-1] < 0.8 * single[0], "a model that learns nothing proves nothing"
    assert difference(single, parallel) <= TOLERANCE


def test_communication_off_changes_the_curve(cluster: Cluster) -> None:
    """Negative control: the loss still looks plausible, and the comparison still notices."""
    single = losses(cluster, 1, ())
    broken = losses(cluster, 4, (2, 2), fault="communication-off")
    assert broken[-1] < broken[0]
    assert difference(single, broken) > 1e-3
