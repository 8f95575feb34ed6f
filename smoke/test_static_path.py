"""Capacity mode over CP groups: tensors in place of a pack's integers, exact in float64 to 1e-10.

Attention is compared with the oracle, whole steps with the same step on one rank. Rows of padding
hold NaN.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringproof.harness.cluster import Cluster
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.names import COMM_TYPES
from ringproof.reference.packing.partition import PARTITIONS
from smoke import cases, model_cases
from smoke.model_cases import ModelCase
from smoke.parity_variants import (
    Record,
    check_exact,
    levels,
    measured,
    packed_case,
    slow,
    variants,
    worlds_and_levels,
)
from smoke.test_model_parallel import DYNAMIC, MOONLIGHT, NEMOTRON, QWEN3, Alone, run

pytestmark = pytest.mark.slow  # `make test` has no time for them

TOLERANCE = 1e-10
# Two microbatches of one size on every rank, in one of which a group has no sequence at all.
REFILLED = (((2, (0,)), (2, (1, 3))), ((2, (2,)), (2, ())))
BOTH = (((2, (0, 1)),), ((2, (2, 3)),))
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


def check_attention(cluster: Cluster, wanted: list[ParityCase], record: Record) -> None:
    check_exact(cluster, wanted, record, cases.static_parity, fault="none")


@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("world", [1, 2, 4, pytest.param(8, marks=slow)])
def test_attention_is_exact(
    cluster: Cluster, world: int, comm_type: str, record_property: Record
) -> None:
    check_attention(cluster, variants(world, comm_type, packed=True), record_property)


@worlds_and_levels([(1, 1), (2, 1), (1, 2), (2, 2)], [(2, 4), (4, 2)])
def test_attention_over_levels_is_exact(
    cluster: Cluster, sizes: tuple[int, int], record_property: Record
) -> None:
    world = sizes[0] * sizes[1]
    check_attention(cluster, variants(world, "a2a+p2p", sizes, packed=True), record_property)


@pytest.mark.parametrize("comm_type", COMM_TYPES)
def test_wrong_metadata_are_seen(cluster: Cluster, comm_type: str) -> None:
    """Negative controls: the other pack's, no dummy over the tail, padding left in the products."""
    sizes = levels(comm_type, 2, 2)
    fields = {"world": 4, "comm_type": comm_type, "hierarchical_sizes": sizes, "kv_heads": 4}
    wanted = [packed_case(cases.fixed_pack(1), **fields)]
    for fault in ("none", "stale", "hidden tail", "poison"):
        (found,) = measured(cluster, wanted, cases.static_parity, fault=fault)
        worst = max(found["max_abs_error"].values())
        assert worst <= TOLERANCE if fault == "none" else worst > 1e-2, fault


@pytest.fixture(scope="module")
def alone(cluster: Cluster) -> Alone:
    """Each model on one rank, eagerly."""
    return Alone(cluster)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_equals_one_rank(
    name: str, cluster: Cluster, alone: Alone, record_property: Record
) -> None:
    case = replace(STEPS[name], static=True)
    found = run(cluster, case)
    worst = alone.worst(found, case.config)
    record_property("worst_gradient_difference", worst)
    assert found.losses == pytest.approx(dict(alone.of(case.config).losses), rel=TOLERANCE)
    assert not found.unequal
    assert worst < TOLERANCE


@pytest.mark.parametrize("stale", ["metadata.order", "metadata.places", "metadata.table", "real"])
def test_a_step_on_stale_tensors_is_seen(stale: str, cluster: Cluster, alone: Alone) -> None:
    """Negative control: one tensor of the first microbatch is still there in the second."""
    case = ModelCase(config=NEMOTRON, domain=2, plan=BOTH, static=True, stale=stale)
    found = run(cluster, case)
    assert alone.worst(found, NEMOTRON) > 1e-3


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize(
    "comm_type", ["p2p", *(pytest.param(c, marks=slow) for c in ("all_gather", "a2a")), "a2a+p2p"]
)
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
