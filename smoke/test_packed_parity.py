"""CP attention over packed sequences against one sequence at a time, in float64 to 1e-10.

Rows of padding hold NaN, so nothing may touch them; packs are random: sequences of one token,
without a token, shorter than the chunks, padded in between and at the tail.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from checks.packing.packs import build, random_pack
from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.packing.sequences import PackedSequences, pack
from smoke import cases, packed_cases

slow = pytest.mark.slow  # left out of the quick form of `make prove`
WORLDS = [1, 2, 3, 4, pytest.param(8, marks=slow)]
SMALL_HIERARCHIES = [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2), (1, 4), (4, 1)]
LARGE_HIERARCHIES = [(2, 4), (4, 2)]
HIERARCHIES = [
    *SMALL_HIERARCHIES,
    *(pytest.param(sizes, marks=slow) for sizes in LARGE_HIERARCHIES),
]

Record = Callable[[str, object], None]


def packed_case(packed: PackedSequences, **fields: Any) -> ParityCase:
    return ParityCase(packed=packed, seq_len=packed.rows, **fields)


def variants(world: int, comm_type: str, sizes: tuple[int, ...] = ()) -> list[ParityCase]:
    """Both partitions and masks, MHA, GQA and MQA, the kernels in turn, each with its own pack."""
    exchange = {"a2a": world, "a2a+p2p": sizes[0] if sizes else 1}.get(comm_type, 1)
    n = max(world, 2)  # heads that every group of this world divides
    choices = itertools.product(
        ("zigzag", "contiguous"), (True, False), ((n, n), (2 * n, n), (n, 1))
    )
    return [
        packed_case(
            # Zigzag needs whole chunks; contiguous shards end anywhere.
            random_pack(seed, 2 * world if world > 1 and partition == "zigzag" else world),
            world=world,
            comm_type=comm_type,
            hierarchical_sizes=sizes,
            heads=heads,
            kv_heads=kv_heads,
            # MQA has one kv head: an all-to-all needs a copy per rank, and says so.
            kv_replication=exchange if kv_heads == 1 else 1,
            head_dim=8,
            v_head_dim=12 if causal else 8,
            causal=causal,
            partition=partition,
            kernel=("auto", "reference")[seed % 2],
            seed=seed,
        )
        for seed, (partition, causal, (heads, kv_heads)) in enumerate(choices, start=100 * world)
    ]


def prove(cluster: Cluster, wanted: list[ParityCase], record: Record) -> None:
    outcome = cluster.run(cases.parity, world_size=wanted[0].world, cases=wanted)
    results: list[dict[str, Any]] = outcome.values[0]
    assert len(results) == len(wanted) == 12
    assert all(value == results for value in outcome.values)
    assert {result["layout"] for result in results} == {"thd"}
    worst = {
        name: max(result["max_abs_error"][name] for result in results)
        for name in ("out", "lse", "dq", "dk", "dv")
    }
    record("cases", len(results))
    record("max_abs_error", max(worst.values()))
    assert max(worst.values()) <= 1e-10, worst
    assert all(result["pass"] for result in results)


@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("world", WORLDS)
def test_a_flat_group_is_exact(
    cluster: Cluster, world: int, comm_type: str, record_property: Record
) -> None:
    prove(cluster, variants(world, comm_type), record_property)


@pytest.mark.parametrize("sizes", HIERARCHIES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_a_hierarchical_group_is_exact(
    cluster: Cluster, sizes: tuple[int, int], record_property: Record
) -> None:
    prove(cluster, variants(sizes[0] * sizes[1], "a2a+p2p", sizes), record_property)


@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a", "a2a+p2p"])
def test_many_sequences_are_exact(cluster: Cluster, comm_type: str) -> None:
    """Sixty documents; cut into chunks, or not padded at all and cut wherever a rank ends."""
    draw = random.Random(7)
    lengths = [draw.randint(1, 30) for _ in range(60)]
    packs = {
        "zigzag": pack(lengths, multiple=8),
        "contiguous": pack(lengths, total_multiple=4, tail="extend_last"),
    }
    wanted = [
        packed_case(
            packed,
            world=4,
            comm_type=comm_type,
            hierarchical_sizes=(2, 2) if comm_type == "a2a+p2p" else (),
            heads=4,
            kv_heads=4,
            head_dim=8,
            v_head_dim=8,
            partition=partition,
        )
        for partition, packed in packs.items()
    ]
    results = cluster.run(cases.parity, world_size=4, cases=wanted).values[0]
    assert [result["pass"] for result in results] == [True, True]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_low_precision_stays_near_one_rank(
    cluster: Cluster, dtype: str, record_property: Record
) -> None:
    packed = pack([5, 1, 17, 64, 40], multiple=8, tail="dummy", total_multiple=64)
    wanted = [
        packed_case(
            packed,
            world=4,
            comm_type=comm_type,
            hierarchical_sizes=(2, 2) if comm_type == "a2a+p2p" else (),
            causal=causal,
            dtype=dtype,
        )
        for comm_type in ("p2p", "all_gather", "a2a", "a2a+p2p")
        for causal in (True, False)
    ]
    results = cluster.run(cases.parity, world_size=4, cases=wanted).values[0]
    record_property("max_abs_error", max(max(r["max_abs_error"].values()) for r in results))
    record_property("tolerance", max(max(r["tolerance"].values()) for r in results))
    assert [r["case"] for r in results if not r["pass"]] == []


RIGHT = build([(5, 8), (16, 16), (24, 24), (0, 16)], sequences=3, tail="dummy")
WRONG = {
    "none": RIGHT,
    "one token shifted": build([(4, 8), (16, 16), (24, 24), (0, 16)], sequences=3, tail="dummy"),
    "boundary shifted": build([(5, 8), (24, 24), (16, 16), (0, 16)], sequences=3, tail="dummy"),
    "sequences leak": build([(5, 8), (40, 40), (0, 16)], sequences=2, tail="dummy"),
    "padding seen": build([(8, 8), (16, 16), (24, 24), (0, 16)], sequences=3, tail="dummy"),
    "tail seen": build([(5, 8), (16, 16), (24, 24), (16, 16)], sequences=4, tail="none"),
}


@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a", "a2a+p2p"])
def test_the_proof_notices_a_wrong_pack(cluster: Cluster, comm_type: str) -> None:
    """Negative control: told of another pack, the same measurement is red."""
    sizes = (2, 2) if comm_type == "a2a+p2p" else ()
    case = packed_case(RIGHT, world=4, comm_type=comm_type, hierarchical_sizes=sizes)
    found = cluster.run(packed_cases.parity_with, world_size=4, case=case, packs=WRONG).values[0]
    worst = {fault: max(result["max_abs_error"].values()) for fault, result in found.items()}
    assert [fault for fault, result in found.items() if result["pass"]] == ["none"]
    assert worst.pop("none") <= 1e-10
    assert min(worst.values()) > 1e-2, worst


@pytest.mark.parametrize(
    ("shape", "packed", "named"),
    [
        ((4, 2, 8), pack([8]), r"packed: q has 4 on each of 4 ranks .*8 rows"),
        ((4, 2, 8), pack([16, 8]), "packed: q has 4"),
        ((2, 2, 8), pack([4, 4]), "cu_seqlens_padded: zigzag over 4 CP ranks .* in entry 0"),
        ((1, 2, 2, 8), pack([8]), r"q, k, v: not \[rows, heads, width\]"),
        ((2, 2, 8), None, r"q, k, v: not \[batch, sequence, heads, width\]"),
    ],
)
def test_a_pack_that_is_not_the_tensors_is_refused(
    cluster: Cluster, shape: tuple[int, ...], packed: PackedSequences | None, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        cluster.run(packed_cases.attend_packed, world_size=4, shape=shape, packed=packed)


def test_the_command_measures_a_pack() -> None:
    command = [sys.executable, "-m", "ringproof", "parity", "attention", "--packed", "5,1,17,64"]
    options = ["--comm", "a2a+p2p", "--hcp", "2,1", "--pack-rows", "128", "--json", "-"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["pass"], result["layout"], result["world"]) == (True, "thd", 2)
    assert result["case"]["packed"]["cu_seqlens"] == [0, 5, 6, 23, 87, 87]
    assert result["case"]["packed"]["cu_seqlens_padded"] == [0, 8, 12, 32, 96, 128]
    assert max(result["max_abs_error"].values()) <= 1e-10
