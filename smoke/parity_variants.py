"""Cases of attention parity, for whole sequences and packs, and what their results must be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from checks.packing.packs import random_pack
from ringproof.cluster import Cluster
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.names import COMM_TYPES
from ringproof.reference.packing.partition import PARTITIONS
from ringproof.reference.packing.sequences import PackedSequences
from smoke import cases

SEQ_LEN = 48
"""Rows that every world up to eight ranks cuts into whole chunks."""
Record = Callable[[str, object], None]


def packed_case(packed: PackedSequences, **fields: Any) -> ParityCase:
    return ParityCase(packed=packed, seq_len=packed.rows, **fields)


def levels(comm_type: str, *sizes: int) -> tuple[int, ...]:
    """Level sizes, for the type that has levels."""
    return sizes if comm_type == "a2a+p2p" else ()


def variants(
    world: int, comm_type: str, sizes: tuple[int, ...] = (), *, packed: bool = False
) -> list[ParityCase]:
    """Both partitions and masks, MHA, GQA and MQA, both kernels, with a value width of its own.

    Packs are random, each case has its own, and the kernels take turns.
    """
    exchange = {"a2a": world, "a2a+p2p": sizes[0] if sizes else 1}.get(comm_type, 1)
    n = max(world, 2)  # heads that every group of this world divides
    heads = ((n, n), (2 * n, n), (n, 1))
    choices = list(itertools.product(PARTITIONS, (True, False), heads, ("auto", "reference")))
    if packed:
        choices = [choice for index, choice in enumerate(choices) if index % 4 in (0, 3)]
    found = []
    for seed, (partition, causal, (q_heads, kv_heads), kernel) in enumerate(choices, 100 * world):
        # Zigzag needs whole chunks; contiguous shards end anywhere.
        multiple = 2 * world if world > 1 and partition == "zigzag" else world
        pack = random_pack(seed, multiple) if packed else None
        case = ParityCase(
            packed=pack,
            seq_len=pack.rows if pack else SEQ_LEN,
            batch=1 if pack else 1 + causal,
            world=world,
            comm_type=comm_type,
            hierarchical_sizes=sizes,
            heads=q_heads,
            kv_heads=kv_heads,
            # MQA has one kv head: an all-to-all needs a copy per rank, and says so.
            kv_replication=exchange if kv_heads == 1 else 1,
            head_dim=8,
            v_head_dim=12 if causal else 8,
            causal=causal,
            partition=partition,
            kernel=kernel,
            scale=0.2 if partition == "contiguous" else None,
            seed=seed,
        )
        found.append(case)
    return found


def measured(
    cluster: Cluster,
    wanted: list[ParityCase],
    case: Callable[..., Any] = cases.parity,
    **options: Any,
) -> list[dict[str, Any]]:
    """Results, the same on every rank."""
    outcome = cluster.run(case, world_size=wanted[0].world, cases=wanted, **options)
    results: list[dict[str, Any]] = outcome.values[0]
    assert len(results) == len(wanted)
    assert all(value == results for value in outcome.values)
    return results


def check_exact(
    cluster: Cluster,
    wanted: list[ParityCase],
    record: Record,
    case: Callable[..., Any] = cases.parity,
    **options: Any,
) -> None:
    results = measured(cluster, wanted, case, **options)
    assert len(results) in (12, 24)
    layout = "thd" if wanted[0].packed else "bshd"
    assert {result["layout"] for result in results} == {layout}
    assert all(
        result["max_abs_error"].keys() == {"out", "lse", "dq", "dk", "dv"} for result in results
    )
    worst = max(max(result["max_abs_error"].values()) for result in results)
    record("cases", len(results))
    record("max_abs_error", worst)
    assert worst <= 1e-10
    assert all(result["pass"] for result in results)


def check_low_precision(
    cluster: Cluster, sizes: tuple[int, int], record: Record, **fields: Any
) -> None:
    """All types, both masks; see ``attention/parity.py`` for the limit and its reason."""
    wanted = [
        ParityCase(
            world=sizes[0] * sizes[1],
            comm_type=comm_type,
            hierarchical_sizes=levels(comm_type, *sizes),
            causal=causal,
            seed=seed,
            **fields,
        )
        for comm_type, causal, seed in itertools.product(
            COMM_TYPES, (True, False), range(1 if fields.get("packed") else 4)
        )
    ]
    results = measured(cluster, wanted)
    record("max_abs_error", max(max(r["max_abs_error"].values()) for r in results))
    record("tolerance", max(max(r["tolerance"].values()) for r in results))
    assert [r["case"] for r in results if not r["pass"]] == []


slow = pytest.mark.slow  # left to `make test-slow`, and out of the quick form of `make prove`


def worlds_and_levels(
    small: list[tuple[int, int]], large: list[tuple[int, int]]
) -> pytest.MarkDecorator:
    """Level sizes as a parameter; the large ones are slow."""
    return pytest.mark.parametrize(
        "sizes",
        [*small, *(pytest.param(sizes, marks=slow) for sizes in large)],
        ids=lambda sizes: f"{sizes[0]}x{sizes[1]}",
    )
