"""A model cut over TP and CP against the same model on one rank: loss and all gradients, float64.

Sequences of 13, 1, 32 and 7 tokens, padded, with a dummy tail; multi-token prediction is on. The
rank on its own is compared with a plain dense model in ``checks/model/test_stage.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster
from ringproof.reference.model.config import preset
from smoke import model_cases
from smoke.model_cases import ModelCase, Step

pytestmark = pytest.mark.slow  # `make test` has no time for them

TOLERANCE = 1e-10
QWEN3, MOONLIGHT, NEMOTRON = (
    replace(preset(name), mtp_depths=1)
    for name in ("qwen3-tiny", "moonlight-tiny", "nemotron-h-tiny")
)
# One step in which every rank's group changes from microbatch to microbatch.
DYNAMIC = (
    ((4, (0,)),),
    ((2, (2,)), (1, (1,)), (1, (3,))),
)
CASES = {
    "tp2": ModelCase(config=QWEN3, tp=2),
    "tp2 sp": ModelCase(config=QWEN3, tp=2, sequence_parallel=True),
    "tp4": ModelCase(config=QWEN3, tp=4),
    "tp4 sp": ModelCase(config=QWEN3, tp=4, sequence_parallel=True),
    "cp2": ModelCase(config=QWEN3, domain=2),
    "cp4": ModelCase(config=QWEN3, domain=4),
    "cp4 all_gather contiguous": ModelCase(
        config=QWEN3, domain=4, comm_type="all_gather", partition="contiguous"
    ),
    "cp4 a2a+p2p": ModelCase(config=QWEN3, domain=4, comm_type="a2a+p2p"),
    "tp2 cp2": ModelCase(config=QWEN3, tp=2, domain=2),
    "tp2 sp cp2 recomputed": ModelCase(
        config=QWEN3, tp=2, domain=2, sequence_parallel=True, recompute=True
    ),
    # Two key/value heads on a rank and four ranks that exchange them.
    "tp2 sp cp4 a2a": ModelCase(
        config=QWEN3, tp=2, domain=4, sequence_parallel=True, comm_type="a2a"
    ),
    "dynamic": ModelCase(config=QWEN3, domain=4, plan=DYNAMIC),
    "tp2 sp dynamic a2a+p2p": ModelCase(
        config=QWEN3, tp=2, domain=4, sequence_parallel=True, comm_type="a2a+p2p", plan=DYNAMIC
    ),
    "moonlight tp4": ModelCase(config=MOONLIGHT, tp=4),
    "moonlight tp2 sp cp2": ModelCase(config=MOONLIGHT, tp=2, domain=2, sequence_parallel=True),
    "moonlight tp2 sp dynamic recomputed": ModelCase(
        config=MOONLIGHT, tp=2, domain=4, sequence_parallel=True, plan=DYNAMIC, recompute=True
    ),
    "nemotron-h tp2 sp cp2": ModelCase(config=NEMOTRON, tp=2, domain=2, sequence_parallel=True),
    "nemotron-h tp2 sp dynamic recomputed": ModelCase(
        config=NEMOTRON, tp=2, domain=4, sequence_parallel=True, plan=DYNAMIC, recompute=True
    ),
}

Record = Callable[[str, object], None]


def run(cluster: Cluster, case: ModelCase) -> Step:
    """The step, once every rank has the same losses."""
    outcome = cluster.run(model_cases.step, world_size=case.world, case=case)
    first: Step = outcome.values[0]
    assert first.losses.keys() >= {"lm", "mtp"}
    for other in outcome.values:
        assert other.losses == pytest.approx(first.losses, rel=1e-13)
    return first


@pytest.fixture(scope="module")
def single(cluster: Cluster) -> dict[str, Step]:
    """Each model on one rank."""
    return {
        config.name: run(cluster, ModelCase(config=config))
        for config in (QWEN3, MOONLIGHT, NEMOTRON)
    }


def differences(found: Step, expected: Step) -> dict[str, float]:
    """By parameter, the largest difference over the largest entry."""
    assert found.gradients.keys() == expected.gradients.keys()
    return {
        name: float((found.gradients[name] - gradient).abs().max() / gradient.abs().max())
        for name, gradient in expected.gradients.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_parallel_equals_one_rank(
    name: str, cluster: Cluster, single: dict[str, Step], record_property: Record
) -> None:
    case = CASES[name]
    expected, found = single[case.config.name], run(cluster, case)
    worst = max(differences(found, expected).values())
    record_property("worst_gradient_difference", worst)
    assert found.losses == pytest.approx(dict(expected.losses), rel=TOLERANCE)
    assert not found.unequal
    assert worst < TOLERANCE


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_partial_gradients_are_what_they_are_said_to_be(
    sequence_parallel: bool, cluster: Cluster, single: dict[str, Step]
) -> None:
    """Left unsummed, exactly those said to be partial are wrong, and their copies drift apart.

    Norms of queries and keys see a rank's own heads, so they are partial without sequence
    parallelism, too.
    """
    case = ModelCase(
        config=QWEN3, tp=2, sequence_parallel=sequence_parallel, fault="no-partial-sum"
    )
    found = run(cluster, case)
    assert found.losses == pytest.approx(dict(single[QWEN3.name].losses), rel=TOLERANCE)
    wrong = {
        name
        for name, difference in differences(found, single[QWEN3.name]).items()
        if difference > 1e-3
    }
    heads = {name for name in wrong if name.endswith(("q_norm.weight", "k_norm.weight"))}
    assert len(heads) == 2 * 5  # four layers and that of multi-token prediction
    if sequence_parallel:
        assert wrong - heads == {
            name
            for name in found.gradients
            if name.endswith(("norm.weight", "projection.weight")) and name not in heads
        }
    else:
        assert wrong == heads
    assert found.unequal == wrong


def test_positions_of_the_rank_instead_of_the_sequence(
    cluster: Cluster, single: dict[str, Step]
) -> None:
    """RoPE fed the wrong positions: the loss looks right, the comparison does not."""
    found = run(cluster, ModelCase(config=QWEN3, domain=2, fault="local-positions"))
    expected = single[QWEN3.name]
    assert found.losses["lm"] == pytest.approx(expected.losses["lm"], rel=1e-2)
    assert found.losses["lm"] != pytest.approx(expected.losses["lm"], rel=1e-6)
    assert max(differences(found, expected).values()) > 1e-3


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_backwards_are_transposes(world: int, sequence_parallel: bool, cluster: Cluster) -> None:
    outcome = cluster.run(model_cases.duals, world_size=world, sequence_parallel=sequence_parallel)
    for errors in outcome.values:
        assert max(errors.values()) < 1e-13


def test_rows_that_cannot_be_cut_are_refused(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="rows"):
        cluster.run(model_cases.uneven_rows, world_size=2)
