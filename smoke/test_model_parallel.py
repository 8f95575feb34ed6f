"""Parts of a model cut over TP and CP against one rank: loss and all gradients, float64.

Parts with rules of their own (latent attention, experts) run alone. Whole models in all
layouts are trained in ``test_training_parity``. The rank on its own is compared with a plain dense
model in ``checks/model/test_stage.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ringproof.cluster import Cluster
from ringproof.errors import InputError
from ringproof.reference.model.config import LayerKind, ModelConfig, preset
from smoke import model_cases
from smoke.model_cases import ModelCase, Step

slow = pytest.mark.slow  # left to `make test-slow`

TOLERANCE = 1e-10
MOONLIGHT = preset("moonlight-tiny")
assert MOONLIGHT.experts is not None
LATENT = replace(MOONLIGHT, name="latent", layers=(LayerKind("latent", None),))
EXPERTS = replace(
    MOONLIGHT,
    name="experts",
    layers=(LayerKind(None, "experts"),),
    experts=replace(MOONLIGHT.experts, auxiliary=1.0),
)


# One step in which every rank's group changes from microbatch to microbatch.
DYNAMIC = (((4, (0,)),), ((2, (2,)), (1, (1,)), (1, (3,))))
HALVES = (((2, (0, 1)), (2, (2, 3))),)
LAYOUTS = {
    "tp2": ModelCase(config=LATENT, tp=2),
    "tp2 sp": ModelCase(config=LATENT, tp=2, sequence_parallel=True),
    "cp2": ModelCase(config=LATENT, domain=2),
    "cp4": ModelCase(config=LATENT, domain=4),
    "cp2 of 4": ModelCase(config=LATENT, domain=4, plan=HALVES),
    "dynamic": ModelCase(config=LATENT, domain=4, plan=DYNAMIC),
    "tp2 sp cp2": ModelCase(config=LATENT, tp=2, sequence_parallel=True, domain=2),
    "tp2 sp dynamic": ModelCase(
        config=LATENT, tp=2, sequence_parallel=True, domain=4, plan=DYNAMIC
    ),
}
CASES = {
    f"{config.name} {name}": replace(case, config=config)
    for config in (EXPERTS, LATENT)
    for name, case in LAYOUTS.items()
}
CASES |= {
    f"latent {comm_type} {name}": replace(LAYOUTS[name], config=LATENT, comm_type=comm_type)
    for comm_type in ("all_gather", "a2a", "a2a+p2p")
    for name in ("cp4", "tp2 sp dynamic")
}
QUICK = ("experts dynamic", "latent a2a cp4", "latent tp2 sp cp2")


def run(cluster: Cluster, case: ModelCase) -> Step:
    """The step, once every rank has the same losses."""
    outcome = cluster.run(model_cases.step, world_size=case.world, case=case)
    first: Step = outcome.values[0]
    for other in outcome.values:
        assert other.losses == pytest.approx(first.losses, rel=1e-13)
    return first


class Alone:
    """Each model on one rank, computed when it is first asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[str, Step] = {}

    def of(self, config: ModelConfig) -> Step:
        if config.name not in self._kept:
            self._kept[config.name] = run(self._cluster, ModelCase(config=config))
        return self._kept[config.name]

    def worst(self, found: Step, config: ModelConfig) -> float:
        """Of all gradients, the largest difference over the largest entry."""
        expected = self.of(config)
        assert found.gradients.keys() == expected.gradients.keys()
        return max(
            float((found.gradients[name] - gradient).abs().max() / gradient.abs().max())
            for name, gradient in expected.gradients.items()
        )


@pytest.fixture(scope="module")
def alone(cluster: Cluster) -> Alone:
    return Alone(cluster)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else slow) for name in CASES]
)
def test_parallel_equals_one_rank(
    name: str, cluster: Cluster, alone: Alone, record_property: Callable[[str, object], None]
) -> None:
    case = CASES[name]
    found = run(cluster, case)
    worst = alone.worst(found, case.config)
    record_property("worst_gradient_difference", worst)
    assert found.losses == pytest.approx(dict(alone.of(case.config).losses), rel=TOLERANCE)
    assert not found.unequal
    assert worst < TOLERANCE


def test_a_broken_part_is_seen(cluster: Cluster, alone: Alone) -> None:
    """Negative control: no error is raised, and something else is trained."""
    case = replace(LAYOUTS["tp2 sp"], config=EXPERTS, fault="counted without TP")
    assert alone.worst(run(cluster, case), case.config) > 1e-6


def test_what_ranks_cannot_share_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="rows"):
        cluster.run(model_cases.uneven_rows, world_size=2)
