"""CP attention against one rank: outputs, LSE and every gradient, in float64 to 1e-10."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ringproof.harness.cluster import Cluster
from ringproof.reference.attention.case import ParityCase
from smoke import cases

slow = pytest.mark.slow  # left out of the quick form of `make prove`
WORLDS = [1, 2, 3, 4, pytest.param(6, marks=slow), pytest.param(8, marks=slow)]
SMALL_HIERARCHIES = [(1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (1, 4), (2, 3)]
LARGE_HIERARCHIES = [(3, 2), (2, 4), (4, 2), (1, 8), (8, 1)]
HIERARCHIES = [
    *SMALL_HIERARCHIES,
    *(pytest.param(sizes, marks=slow) for sizes in LARGE_HIERARCHIES),
]
# Heads that every group size here divides, so that one table serves all types.
HEADS = {"mha": (24, 24), "gqa": (48, 24), "mqa": (24, 1)}

Record = Callable[[str, object], None]


def variants(world: int, comm_type: str, sizes: tuple[int, ...] = ()) -> list[ParityCase]:
    """Both partitions and masks, MHA, GQA and MQA, with a value width of its own."""
    exchange = {"a2a": world, "a2a+p2p": sizes[0] if sizes else 1}.get(comm_type, 1)
    return [
        ParityCase(
            world=world,
            comm_type=comm_type,
            hierarchical_sizes=sizes,
            seq_len=96,
            batch=1 + causal,
            heads=heads,
            kv_heads=kv_heads,
            # MQA has one kv head: an all-to-all needs a copy per rank, and says so.
            kv_replication=exchange if kv_heads == 1 else 1,
            head_dim=8,
            v_head_dim=12 if partition == "zigzag" else 8,
            causal=causal,
            partition=partition,
            kernel=kernel,
            scale=0.2 if partition == "contiguous" else None,
        )
        for partition, causal, (heads, kv_heads), kernel in itertools.product(
            ("zigzag", "contiguous"), (True, False), HEADS.values(), ("auto", "reference")
        )
    ]


def prove(cluster: Cluster, wanted: list[ParityCase], record: Record) -> None:
    outcome = cluster.run(cases.parity, world_size=wanted[0].world, cases=wanted)
    results: list[dict[str, Any]] = outcome.values[0]
    assert len(results) == len(wanted) == 24
    assert all(value == results for value in outcome.values)
    worst = {
        name: max(result["max_abs_error"][name] for result in results)
        for name in ("out", "lse", "dq", "dk", "dv")
    }
    record("cases", len(results))
    record("max_abs_error", max(worst.values()))
    assert max(worst.values()) <= 1e-10, worst
    assert all(result["pass"] for result in results)


@pytest.mark.parametrize("world", WORLDS)
def test_ring_is_exact(cluster: Cluster, world: int, record_property: Record) -> None:
    prove(cluster, variants(world, "p2p"), record_property)


@pytest.mark.parametrize("world", WORLDS)
def test_all_gather_is_exact(cluster: Cluster, world: int, record_property: Record) -> None:
    prove(cluster, variants(world, "all_gather"), record_property)


@pytest.mark.parametrize("world", WORLDS)
def test_ulysses_is_exact(cluster: Cluster, world: int, record_property: Record) -> None:
    prove(cluster, variants(world, "a2a"), record_property)


@pytest.mark.parametrize("sizes", HIERARCHIES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_hierarchical_is_exact(
    cluster: Cluster, sizes: tuple[int, int], record_property: Record
) -> None:
    prove(cluster, variants(sizes[0] * sizes[1], "a2a+p2p", sizes), record_property)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "sizes", [(2, 1), pytest.param((4, 2), marks=slow)], ids=["world-2", "world-8"]
)
def test_low_precision_stays_near_one_rank(
    cluster: Cluster, sizes: tuple[int, int], dtype: str, record_property: Record
) -> None:
    """Both against float64; see ``parity.py`` for the limit and its reason."""
    world = sizes[0] * sizes[1]
    wanted = [
        ParityCase(
            world=world,
            comm_type=comm_type,
            hierarchical_sizes=sizes if comm_type == "a2a+p2p" else (),
            seq_len=256,
            heads=8,
            kv_heads=8,
            causal=causal,
            dtype=dtype,
            seed=seed,
        )
        for comm_type in ("p2p", "all_gather", "a2a", "a2a+p2p")
        for causal in (True, False)
        for seed in range(4)
    ]
    results = cluster.run(cases.parity, world_size=world, cases=wanted).values[0]
    record_property("max_abs_error", max(max(r["max_abs_error"].values()) for r in results))
    record_property("tolerance", max(max(r["tolerance"].values()) for r in results))
    assert [r["case"] for r in results if not r["pass"]] == []


@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a", "a2a+p2p"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_proof_notices_communication_that_is_off(
    cluster: Cluster, comm_type: str, dtype: str
) -> None:
    """Negative control: with each rank left to its own chunk, the same measurement is red."""
    sizes = (2, 1) if comm_type == "a2a+p2p" else ()
    case = ParityCase(
        world=2, seq_len=64, comm_type=comm_type, hierarchical_sizes=sizes, dtype=dtype
    )
    right = cluster.run(cases.broken_parity, world_size=2, case=case, fault="none").values[0]
    wrong = cluster.run(
        cases.broken_parity, world_size=2, case=case, fault="communication-off"
    ).values[0]
    assert right["pass"]
    assert not wrong["pass"]
    assert min(wrong["max_abs_error"].values()) > 0.1
