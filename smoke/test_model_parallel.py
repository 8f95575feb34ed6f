"""A model cut over TP and CP against the same model on one rank: loss and all gradients, float64.

Sequences of 13, 1, 32 and 7 tokens, padded, with a dummy tail; multi-token prediction is on. Parts
with rules of their own (Mamba, latent attention, experts) run alone, too, in more layouts. The rank
on its own is compared with a plain dense model in ``checks/model/test_stage.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ringproof.cluster import Cluster
from ringproof.errors import InputError
from ringproof.reference.model.config import LayerKind, MambaShape, ModelConfig, preset
from ringproof.reference.packing.partition import PARTITIONS
from smoke import model_cases
from smoke.model_cases import ModelCase, Step

slow = pytest.mark.slow  # left to `make test-slow`

TOLERANCE = 1e-10
QWEN3, MOONLIGHT, NEMOTRON = (
    replace(preset(name), mtp_depths=1)
    for name in ("qwen3-tiny", "moonlight-tiny", "nemotron-h-tiny")
)
assert MOONLIGHT.experts is not None
LATENT = replace(MOONLIGHT, name="latent", layers=(LayerKind("latent", None),), mtp_depths=0)
EXPERTS = replace(
    MOONLIGHT,
    name="experts",
    layers=(LayerKind(None, "experts"),),
    experts=replace(MOONLIGHT.experts, auxiliary=1.0),
    mtp_depths=0,
)


def mixer(heads: int, groups: int) -> ModelConfig:
    """One layer of Mamba."""
    return replace(
        NEMOTRON,
        name=f"mamba of {heads} heads in {groups} groups",
        layers=(LayerKind("mamba", None),),
        mamba=MambaShape(heads=heads, head_width=4, state_width=6, groups=groups),
        mtp_depths=0,
    )


# One step in which every rank's group changes from microbatch to microbatch.
DYNAMIC = (((4, (0,)),), ((2, (2,)), (1, (1,)), (1, (3,))))
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

HALVES = (((2, (0, 1)), (2, (2, 3))),)
LAYOUTS = {
    "tp2": ModelCase(config=QWEN3, tp=2),
    "tp2 sp": ModelCase(config=QWEN3, tp=2, sequence_parallel=True),
    "cp2": ModelCase(config=QWEN3, domain=2),
    "cp4": ModelCase(config=QWEN3, domain=4),
    "cp2 of 4": ModelCase(config=QWEN3, domain=4, plan=HALVES),
    "dynamic": ModelCase(config=QWEN3, domain=4, plan=DYNAMIC),
    "tp2 sp cp2": ModelCase(config=QWEN3, tp=2, sequence_parallel=True, domain=2),
    "tp2 sp dynamic": ModelCase(config=QWEN3, tp=2, sequence_parallel=True, domain=4, plan=DYNAMIC),
}
CASES |= {
    f"{config.name} {name}": replace(case, config=config)
    for config in (EXPERTS, LATENT)
    for name, case in LAYOUTS.items()
}
CASES |= {
    f"latent {comm_type} {name}": replace(LAYOUTS[name], config=LATENT, comm_type=comm_type)
    for comm_type in ("all_gather", "a2a", "a2a+p2p")
    for name in ("cp4", "tp2 sp dynamic")
}
# Groups whole on a rank, a group over several ranks, ranks that take the heads of two groups.
SHARES = {
    2: ((8, 2), (6, 3), (6, 1)),
    3: ((6, 2), (6, 3), (12, 4)),
    4: ((8, 2), (8, 8), (12, 3)),
    8: ((8, 2), (24, 3)),
}
CASES |= {
    f"{config.name} cp{domain} {partition}": ModelCase(
        config=config, domain=domain, partition=partition
    )
    for domain, shapes in SHARES.items()
    for config in (mixer(*shape) for shape in shapes)
    for partition in ("zigzag", "contiguous")
}
CASES |= {
    f"{config.name} {name}": replace(LAYOUTS[name], config=config)
    for config in (mixer(8, 2), mixer(8, 4))
    for name in ("tp2", "tp2 sp", "tp2 sp cp2", "tp2 sp dynamic")
}
CASES["mamba, padding of NaN"] = ModelCase(config=mixer(8, 2), domain=2, fault="padding of NaN")
# Two microbatches of one size on every rank, in one of which a group has no sequence at all.
REFILLED = (((2, (0,)), (2, (1, 3))), ((2, (2,)), (2, ())))
# Capacity mode: a static microbatch of tensors in place of a pack's integers, refilled in turn.
STATIC = {
    "qwen3 p2p": ModelCase(config=QWEN3, domain=4),
    "qwen3 all_gather contiguous": ModelCase(
        config=QWEN3, domain=4, comm_type="all_gather", partition="contiguous"
    ),
    "qwen3 tp2 sp a2a refilled": ModelCase(
        config=QWEN3, tp=2, domain=4, sequence_parallel=True, comm_type="a2a", plan=REFILLED
    ),
    "qwen3 a2a+p2p dynamic recomputed": ModelCase(
        config=QWEN3, domain=4, comm_type="a2a+p2p", plan=DYNAMIC, recompute=True
    ),
    "qwen3 cp8": ModelCase(config=QWEN3, domain=8, comm_type="a2a+p2p"),
    "moonlight tp2 sp refilled": ModelCase(
        config=MOONLIGHT, tp=2, domain=4, sequence_parallel=True, plan=REFILLED
    ),
    "moonlight a2a contiguous": ModelCase(
        config=MOONLIGHT, domain=4, comm_type="a2a", partition="contiguous"
    ),
    "nemotron-h tp2 sp refilled": ModelCase(
        config=NEMOTRON, tp=2, domain=4, sequence_parallel=True, plan=REFILLED
    ),
    "nemotron-h a2a+p2p contiguous": ModelCase(
        config=NEMOTRON, domain=4, comm_type="a2a+p2p", partition="contiguous"
    ),
    "nemotron-h dynamic recomputed": ModelCase(
        config=NEMOTRON, domain=4, plan=DYNAMIC, recompute=True
    ),
}
CASES |= {f"static {name}": replace(case, static=True) for name, case in STATIC.items()}
QUICK = (
    "experts dynamic",
    "latent a2a cp4",
    "mamba of 6 heads in 3 groups cp2 zigzag",
    "mamba of 8 heads in 2 groups cp4 contiguous",
    "mamba of 8 heads in 2 groups tp2 sp cp2",
    "mamba, padding of NaN",
)

Record = Callable[[str, object], None]


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
        return max(differences(found, self.of(config)).values())


@pytest.fixture(scope="module")
def alone(cluster: Cluster) -> Alone:
    return Alone(cluster)


def differences(found: Step, expected: Step) -> dict[str, float]:
    """By parameter, the largest difference over the largest entry."""
    assert found.gradients.keys() == expected.gradients.keys()
    return {
        name: float((found.gradients[name] - gradient).abs().max() / gradient.abs().max())
        for name, gradient in expected.gradients.items()
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else slow) for name in CASES]
)
def test_parallel_equals_one_rank(
    name: str, cluster: Cluster, alone: Alone, record_property: Record
) -> None:
    case = CASES[name]
    found = run(cluster, case)
    worst = alone.worst(found, case.config)
    record_property("worst_gradient_difference", worst)
    assert found.losses == pytest.approx(dict(alone.of(case.config).losses), rel=TOLERANCE)
    assert ("mtp" in found.losses) == bool(case.config.mtp_depths)
    assert not found.unequal
    assert worst < TOLERANCE


@slow
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("config", [QWEN3, EXPERTS, LATENT], ids=lambda config: config.name)
def test_partial_gradients_are_what_they_are_said_to_be(
    config: ModelConfig, sequence_parallel: bool, cluster: Cluster, alone: Alone
) -> None:
    """Left unsummed, exactly those said to be partial are wrong, and their copies drift apart."""
    case = ModelCase(config=config, tp=2, sequence_parallel=sequence_parallel)
    found = run(cluster, replace(case, fault="no-partial-sum"))
    assert found.losses == pytest.approx(dict(alone.of(config).losses), rel=TOLERANCE)
    errors = differences(found, alone.of(config))
    wrong = {name for name, difference in errors.items() if difference > 1e-3}
    assert wrong == found.partial == found.unequal
    if config is QWEN3:
        # Norms of queries and keys see a rank's own heads, so they are partial without sequence
        # parallelism, too: in four layers and that of multi-token prediction.
        heads = {name for name in wrong if name.endswith(("q_norm.weight", "k_norm.weight"))}
        assert len(heads) == 2 * 5
        assert (wrong == heads) == (not sequence_parallel)


@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        ("cp4", "router-loss-not-reduced"),
        pytest.param("cp2 of 4", "counted over the domain", marks=slow),
        ("dynamic", "counted over the domain"),
        pytest.param("cp2", "router-loss-counts-padding", marks=slow),
        pytest.param("tp2 sp", "counted without TP", marks=slow),
        pytest.param("tp2 sp dynamic", "counted without TP", marks=slow),
    ],
)
def test_a_balance_loss_over_other_ranks_is_seen(
    cluster: Cluster, alone: Alone, layout: str, fault: str
) -> None:
    """Negative control: no error is raised, and something else is trained."""
    found = run(cluster, replace(LAYOUTS[layout], config=EXPERTS, fault=fault))
    wanted = alone.of(EXPERTS).losses
    assert found.losses["lm"] == pytest.approx(wanted["lm"], rel=TOLERANCE)
    assert found.losses["moe_auxiliary"] != pytest.approx(wanted["moe_auxiliary"], rel=1e-6)
    assert differences(found, alone.of(EXPERTS))["layers.0.moe.router.weight"] > 1e-6


@slow
def test_a_group_as_large_as_the_domain_is_the_domain(cluster: Cluster, alone: Alone) -> None:
    """Where both are the same ranks the fault is none: what is red above is the group."""
    case = replace(LAYOUTS["cp4"], config=EXPERTS, fault="counted over the domain")
    assert alone.worst(run(cluster, case), EXPERTS) < TOLERANCE


@pytest.mark.parametrize(
    "fault",
    [
        "mamba-zigzag-not-undone",
        pytest.param("state crosses borders", marks=slow),
        pytest.param("convolution crosses borders", marks=slow),
        pytest.param("copies of the wrong group", marks=slow),
    ],
)
def test_a_broken_mixer_is_seen(cluster: Cluster, alone: Alone, fault: str) -> None:
    """Negative control."""
    config = mixer(8, 2)
    found = run(cluster, ModelCase(config=config, domain=4, fault=fault))
    assert alone.worst(found, config) > 1e-2


def test_ranks_that_cannot_share_the_heads_are_refused(cluster: Cluster) -> None:
    with pytest.raises(InputError, match=r"mamba heads: a TP rank has 8, .*\(TP 1, CP 3\)"):
        run(cluster, ModelCase(config=mixer(8, 2), domain=3))


@slow
def test_positions_of_the_rank_instead_of_the_sequence(cluster: Cluster, alone: Alone) -> None:
    """RoPE fed the wrong positions: the loss looks right, the comparison does not."""
    found = run(cluster, ModelCase(config=QWEN3, domain=2, fault="local-positions"))
    expected = alone.of(QWEN3)
    assert found.losses["lm"] == pytest.approx(expected.losses["lm"], rel=1e-2)
    assert found.losses["lm"] != pytest.approx(expected.losses["lm"], rel=1e-6)
    assert alone.worst(found, QWEN3) > 1e-3


@slow
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_backwards_are_transposes(world: int, sequence_parallel: bool, cluster: Cluster) -> None:
    outcome = cluster.run(model_cases.duals, world_size=world, sequence_parallel=sequence_parallel)
    for errors in outcome.values:
        assert max(errors.values()) < 1e-13


@slow
def test_rows_that_cannot_be_cut_are_refused(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="rows"):
        cluster.run(model_cases.uneven_rows, world_size=2)


BOTH = (((2, (0, 1)),), ((2, (2, 3)),))
MOVES = {
    "p2p": {"send", "recv_"},
    "all_gather": {"_allgather_base_"},
    "a2a": {"alltoall_base_"},
    "a2a+p2p": {"send", "recv_", "alltoall_base_"},
}


@slow
@pytest.mark.parametrize("stale", ["metadata.order", "metadata.places", "metadata.table", "real"])
def test_a_step_on_stale_tensors_is_seen(stale: str, cluster: Cluster, alone: Alone) -> None:
    """Negative control: one tensor of the first microbatch is still there in the second."""
    case = ModelCase(config=NEMOTRON, domain=2, plan=BOTH, static=True, stale=stale)
    found = run(cluster, case)
    assert alone.worst(found, NEMOTRON) > 1e-3


@slow
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("comm_type", MOVES)
def test_two_packs_are_the_same_operations_on_every_rank(
    cluster: Cluster, comm_type: str, partition: str
) -> None:
    """With collectives, numbers, shapes and memory; nothing of a pack is baked in or read back."""
    values = cluster.run(
        model_cases.streams,
        world_size=4,
        config=NEMOTRON,
        comm_type=comm_type,
        partition=partition,
        static=True,
    ).values
    for difference, length, moves, read_back in values:
        assert difference == ""
        assert length > 1000
        assert moves >= MOVES[comm_type]
        assert not read_back


@slow
def test_operations_of_the_eager_way_differ(cluster: Cluster) -> None:
    """Negative control."""
    values = cluster.run(
        model_cases.streams,
        world_size=2,
        config=QWEN3,
        comm_type="p2p",
        partition="zigzag",
        static=False,
    ).values
    assert all("operation" in difference for difference, *_ in values)
