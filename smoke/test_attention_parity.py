"""CP attention against one rank: outputs, LSE and every gradient, in float64 to 1e-10."""

from __future__ import annotations

import pytest

from ringproof.cluster import Cluster
from ringproof.errors import InputError
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.names import COMM_TYPES
from smoke import cases
from smoke.parity_variants import (
    Record,
    check_exact,
    check_low_precision,
    levels,
    slow,
    variants,
    worlds_and_levels,
)

WORLDS = [1, 2, 3, 4, pytest.param(6, marks=slow), pytest.param(8, marks=slow)]
SMALL_HIERARCHIES = [(1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (1, 4), (2, 3)]
LARGE_HIERARCHIES = [(3, 2), (2, 4), (4, 2), (1, 8), (8, 1)]


@pytest.mark.parametrize("world", WORLDS)
def test_ring_is_exact(cluster: Cluster, world: int, record_property: Record) -> None:
    check_exact(cluster, variants(world, "p2p"), record_property)


@pytest.mark.parametrize("world", WORLDS)
def test_all_gather_is_exact(cluster: Cluster, world: int, record_property: Record) -> None:
    check_exact(cluster, variants(world, "all_gather"), record_property)


@pytest.mark.parametrize("world", WORLDS)
def test_ulysses_is_exact(cluster: Cluster, world: int, record_property: Record) -> None:
    check_exact(cluster, variants(world, "a2a"), record_property)


@worlds_and_levels(SMALL_HIERARCHIES, LARGE_HIERARCHIES)
def test_hierarchical_is_exact(
    cluster: Cluster, sizes: tuple[int, int], record_property: Record
) -> None:
    check_exact(cluster, variants(sizes[0] * sizes[1], "a2a+p2p", sizes), record_property)


def test_any_sign_of_the_scale_is_exact(cluster: Cluster, record_property: Record) -> None:
    shapes = [
        ParityCase(world=2, seq_len=64, comm_type=comm_type, scale=scale, causal=causal)
        for comm_type in ("p2p", "a2a")
        for scale in (-0.25, 0.0, 3.0)
        for causal in (True, False)
    ]
    check_exact(cluster, shapes, record_property)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e300, -1e300])
def test_a_scale_that_no_score_survives_is_refused(scale: float) -> None:
    with pytest.raises(InputError, match=r"scale: .* is not a number up to 1e"):
        ParityCase(world=2, scale=scale).check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "sizes", [(2, 1), pytest.param((4, 2), marks=slow)], ids=["world-2", "world-8"]
)
def test_low_precision_stays_near_one_rank(
    cluster: Cluster, sizes: tuple[int, int], dtype: str, record_property: Record
) -> None:
    shape = {"seq_len": 128, "heads": 8, "kv_heads": 8}
    check_low_precision(cluster, sizes, record_property, dtype=dtype, **shape)


@pytest.mark.parametrize("comm_type", COMM_TYPES)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_proof_notices_communication_that_is_off(
    cluster: Cluster, comm_type: str, dtype: str
) -> None:
    """Negative control: with each rank left to its own chunk, the same measurement is red."""
    case = ParityCase(
        world=2,
        seq_len=64,
        comm_type=comm_type,
        hierarchical_sizes=levels(comm_type, 2, 1),
        dtype=dtype,
    )
    right, wrong = (
        cluster.run(cases.broken_parity, world_size=2, case=case, fault=fault).values[0]
        for fault in ("none", "communication-off")
    )
    assert right["pass"]
    assert not wrong["pass"]
    assert min(wrong["max_abs_error"].values()) > 0.1
