"""Capacity mode over CP groups: tensors in place of a pack's integers, exact in float64 to 1e-10.

Attention is compared with the step tables' on the same pack (which ``test_packed_parity`` compares
with the oracle), whole steps with the same step on one rank. Rows of padding hold NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ringproof.harness.cluster import Cluster
from ringproof.reference.packing.partition import PARTITIONS
from smoke import model_cases, static_cases
from smoke.model_cases import ModelCase, Step
from smoke.static_cases import AttentionCase, largest
from smoke.test_model_parallel import MOONLIGHT, NEMOTRON, QWEN3, differences

pytestmark = pytest.mark.slow  # `make test` has no time for them

TOLERANCE = 1e-10
Record = Callable[[str, object], None]
slow = pytest.mark.slow  # left out of the quick form of `make prove`
WORLDS = [1, 2, 4, pytest.param(8, marks=slow)]
HIERARCHIES = {1: [(1, 1)], 2: [(2, 1), (1, 2)], 4: [(2, 2)], 8: [(2, 4), (4, 2)]}
# Two microbatches of one size on every rank, in one of which a group has no sequence at all.
REFILLED = (
    ((2, (0,)), (2, (1, 3))),
    ((2, (2,)), (2, ())),
)
BOTH = (((2, (0, 1)),), ((2, (2, 3)),))
# Every rank's group changes from microbatch to microbatch.
DYNAMIC = (
    ((4, (0,)),),
    ((2, (2,)), (1, (1,)), (1, (3,))),
)
MOVES = {
    "p2p": {"send", "recv_"},
    "all_gather": {"_allgather_base_"},
    "a2a": {"alltoall_base_"},
    "a2a+p2p": {"send", "recv_", "alltoall_base_"},
}
STEPS = {
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


def variants(world: int) -> list[AttentionCase]:
    """All communication types, both partitions and masks, MHA and GQA."""
    types: list[tuple[str, tuple[int, ...]]] = [("p2p", ()), ("all_gather", ()), ("a2a", ())]
    types += [("a2a+p2p", sizes) for sizes in HIERARCHIES[world]]
    choices = itertools.product(types, PARTITIONS, ((True, 8), (False, 16)))
    return [
        AttentionCase(
            comm_type=comm_type, sizes=sizes, partition=partition, causal=causal, heads=heads
        )
        for (comm_type, sizes), partition, (causal, heads) in choices
    ]


@pytest.mark.parametrize("world", WORLDS)
def test_attention_is_what_the_step_tables_say(
    cluster: Cluster, world: int, record_property: Record
) -> None:
    cases = variants(world)
    values = cluster.run(static_cases.attention, world_size=world, cases=cases).values
    worst = [largest(errors) for errors in zip(*values, strict=True)]
    assert len(worst) == len(cases) >= 16
    record_property("max_abs_error", max(worst))
    assert max(worst) <= TOLERANCE, dict(zip(cases, worst, strict=True))


@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a", "a2a+p2p"])
def test_wrong_metadata_are_seen(cluster: Cluster, comm_type: str) -> None:
    """Negative controls: the other pack's, no dummy over the tail, padding left in the products."""
    sizes = (2, 2) if comm_type == "a2a+p2p" else ()
    faults = ("none", "stale", "hidden tail", "poison")
    cases = [AttentionCase(comm_type=comm_type, sizes=sizes, fault=fault) for fault in faults]
    values = cluster.run(static_cases.attention, world_size=4, cases=cases).values
    sound, *broken = (largest(errors) for errors in zip(*values, strict=True))
    assert sound <= TOLERANCE
    assert min(broken) > 1e-2, broken


@pytest.fixture(scope="module")
def single(cluster: Cluster) -> dict[str, Step]:
    """Each model on one rank, eagerly."""
    return {
        config.name: cluster.run(
            model_cases.step, world_size=1, case=ModelCase(config=config)
        ).values[0]
        for config in (QWEN3, MOONLIGHT, NEMOTRON)
    }


def static_step(cluster: Cluster, case: ModelCase, **options: Any) -> Step:
    outcome = cluster.run(static_cases.step, world_size=case.world, case=case, **options)
    step: Step = outcome.values[0]
    return step


@pytest.mark.parametrize("name", STEPS)
def test_a_step_equals_one_rank(
    name: str, cluster: Cluster, single: dict[str, Step], record_property: Record
) -> None:
    case = STEPS[name]
    expected, found = single[case.config.name], static_step(cluster, case)
    worst = max(differences(found, expected).values())
    record_property("worst_gradient_difference", worst)
    assert found.losses == pytest.approx(dict(expected.losses), rel=TOLERANCE)
    assert not found.unequal
    assert worst < TOLERANCE


@pytest.mark.parametrize("stale", ["metadata.order", "metadata.places", "metadata.table", "real"])
def test_a_step_on_stale_tensors_is_seen(
    stale: str, cluster: Cluster, single: dict[str, Step]
) -> None:
    """Negative control: one tensor of the first microbatch is still there in the second."""
    found = static_step(cluster, ModelCase(config=NEMOTRON, domain=2, plan=BOTH), stale=stale)
    assert max(differences(found, single[NEMOTRON.name]).values()) > 1e-3


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize(
    "comm_type", ["p2p", *(pytest.param(c, marks=slow) for c in ("all_gather", "a2a")), "a2a+p2p"]
)
def test_two_packs_are_the_same_operations_on_every_rank(
    cluster: Cluster, comm_type: str, partition: str
) -> None:
    """With collectives, numbers, shapes and memory; nothing of a pack is baked in or read back."""
    values = cluster.run(
        static_cases.streams,
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


def test_operations_of_the_eager_way_differ(cluster: Cluster) -> None:
    """Negative control."""
    values = cluster.run(
        static_cases.streams,
        world_size=2,
        config=QWEN3,
        comm_type="p2p",
        partition="zigzag",
        static=False,
    ).values
    assert all("operation" in difference for difference, *_ in values)
