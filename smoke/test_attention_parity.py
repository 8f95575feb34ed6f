"""CP attention against one rank: outputs, LSE and every gradient, in float64 to 1e-10.

Rows of padding in packs hold NaN, so nothing may touch them; packs are random: sequences of one
token, without a token, shorter than the chunks, padded in between and at the tail.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from checks.packing.packs import build, random_pack
from ringproof.cluster import Cluster
from ringproof.errors import InputError
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.names import COMM_TYPES
from ringproof.reference.packing.capacity import to_capacity
from ringproof.reference.packing.partition import PARTITIONS, round_up
from ringproof.reference.packing.sequences import Capacity, PackedSequences, pack
from smoke import cases
from smoke.processes import ringproof

SEQ_LEN = 48
"""Rows that every world up to eight ranks cuts into whole chunks."""
Record = Callable[[str, object], None]
slow = pytest.mark.slow  # left to `make test-slow`, and out of the quick form of `make prove`


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


def measured(cluster: Cluster, wanted: list[ParityCase]) -> list[dict[str, Any]]:
    """Results, the same on every rank."""
    outcome = cluster.run(cases.parity, world_size=wanted[0].world, cases=wanted)
    results: list[dict[str, Any]] = outcome.values[0]
    assert len(results) == len(wanted)
    assert all(value == results for value in outcome.values)
    return results


def check_exact(cluster: Cluster, wanted: list[ParityCase], record: Record) -> None:
    results = measured(cluster, wanted)
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


WORLDS = [2, 3, *(pytest.param(world, marks=slow) for world in (1, 4, 6, 8))]
LEVELS = [(2, 1), (1, 2), (2, 2)]
MORE_LEVELS = [(1, 1), (1, 3), (3, 1), (1, 4), (4, 1), (2, 3), (3, 2), (2, 4), (4, 2)]
MORE_LEVELS += [(1, 8), (8, 1)]
whole_or_packed = pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])


@whole_or_packed
@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("world", WORLDS)
def test_a_flat_group_is_exact(
    cluster: Cluster, world: int, comm_type: str, packed: bool, record_property: Record
) -> None:
    check_exact(cluster, variants(world, comm_type, packed=packed), record_property)


@whole_or_packed
@pytest.mark.parametrize(
    "sizes",
    [*LEVELS, *(pytest.param(sizes, marks=slow) for sizes in MORE_LEVELS)],
    ids=lambda sizes: f"{sizes[0]}x{sizes[1]}",
)
def test_a_hierarchical_group_is_exact(
    cluster: Cluster, sizes: tuple[int, int], packed: bool, record_property: Record
) -> None:
    wanted = variants(sizes[0] * sizes[1], "a2a+p2p", sizes, packed=packed)
    check_exact(cluster, wanted, record_property)


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


OTHER_TYPES = [one for one in COMM_TYPES if one not in ("p2p", "a2a")]
PACK = to_capacity(pack([5, 1, 17, 64, 40], multiple=8), Capacity(rows=192, entries=6))
WHOLE = {"seq_len": 128, "heads": 8, "kv_heads": 8}


@pytest.mark.parametrize(
    "dtype",
    [pytest.param("float32", marks=slow), "bfloat16", pytest.param("float16", marks=slow)],
)
@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        pytest.param((2, 1), WHOLE, id="world-2"),
        pytest.param((4, 2), WHOLE, id="world-8", marks=slow),
        pytest.param((2, 2), {"packed": PACK, "seq_len": PACK.rows}, id="packed"),
    ],
)
def test_low_precision_stays_near_one_rank(
    cluster: Cluster,
    sizes: tuple[int, int],
    shape: dict[str, Any],
    dtype: str,
    record_property: Record,
) -> None:
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


@pytest.mark.parametrize(
    "comm_type", ["p2p", "a2a", *(pytest.param(one, marks=slow) for one in OTHER_TYPES)]
)
def test_many_sequences_are_exact(cluster: Cluster, comm_type: str) -> None:
    """Sixty documents; cut into chunks, or not padded at all and cut wherever a rank ends."""
    draw = random.Random(7)
    lengths = [draw.randint(1, 30) for _ in range(60)]
    packs = {
        "zigzag": pack(lengths, multiple=8),
        "contiguous": to_capacity(
            pack(lengths), Capacity(rows=round_up(sum(lengths), 4), entries=61)
        ),
    }
    shape = {"heads": 4, "kv_heads": 4, "head_dim": 8, "v_head_dim": 8}
    wanted = [
        packed_case(
            packed,
            world=4,
            comm_type=comm_type,
            hierarchical_sizes=levels(comm_type, 2, 2),
            partition=partition,
            **shape,
        )
        for partition, packed in packs.items()
    ]
    assert [result["pass"] for result in measured(cluster, wanted)] == [True, True]


RIGHT = build([(5, 8), (16, 16), (24, 24), (0, 16)], sequences=3)
WRONG = {
    "none": RIGHT,
    "one token shifted": build([(4, 8), (16, 16), (24, 24), (0, 16)], sequences=3),
    "boundary shifted": build([(5, 8), (24, 24), (16, 16), (0, 16)], sequences=3),
    "sequences leak": build([(5, 8), (40, 40), (0, 16)], sequences=2),
    "padding seen": build([(8, 8), (16, 16), (24, 24), (0, 16)], sequences=3),
    "tail seen": build([(5, 8), (16, 16), (24, 24), (16, 16)], sequences=4),
}


@pytest.mark.parametrize("comm_type", COMM_TYPES)
def test_the_proof_notices_a_wrong_pack(cluster: Cluster, comm_type: str) -> None:
    """Negative control: told of another pack, the same measurement is red."""
    sizes = levels(comm_type, 2, 2)
    case = packed_case(RIGHT, world=4, comm_type=comm_type, hierarchical_sizes=sizes)
    found = cluster.run(cases.parity_with, world_size=4, case=case, packs=WRONG).values[0]
    worst = {fault: max(result["max_abs_error"].values()) for fault, result in found.items()}
    assert [fault for fault, result in found.items() if result["pass"]] == ["none"]
    assert worst.pop("none") <= 1e-10
    assert min(worst.values()) > 1e-2, worst


@pytest.mark.parametrize(
    ("shape", "packed", "named"),
    [
        ((4, 2, 8), pack([8]), "packed: the pack has 8 rows, and q has 4 rows on each of 4 ranks"),
        ((4, 2, 8), pack([16, 8]), "packed: .* q has 4"),
        (
            (2, 2, 8),
            pack([4, 4]),
            "cu_seqlens_padded: .* of entry 0 cannot be divided zigzag over 4",
        ),
        ((1, 2, 2, 8), pack([8]), r"q, k, v: .* not all \[rows, heads, width\]"),
        ((2, 2, 8), None, r"q, k, v: .* not all \[batch, sequence, heads, width\]"),
    ],
)
def test_a_pack_that_is_not_the_tensors_is_refused(
    cluster: Cluster, shape: tuple[int, ...], packed: PackedSequences | None, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        cluster.run(cases.attend_packed, world_size=4, shape=shape, packed=packed)


def test_the_command_measures_a_pack() -> None:
    packed = ("--lengths", "5,1,17,64", "--comm", "a2a+p2p", "--hcp", "2,1")
    done = ringproof("parity", "attention", *packed, "--json", "-")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["pass"], result["layout"], result["world"]) == (True, "thd", 2)
    assert result["case"]["packed"]["cu_seqlens"] == [0, 5, 6, 23, 87]
    assert result["case"]["packed"]["cu_seqlens_padded"] == [0, 8, 12, 32, 96]
    assert max(result["max_abs_error"].values()) <= 1e-10
