"""CP attention over packed sequences against one sequence at a time, in float64 to 1e-10.

Rows of padding hold NaN, so nothing may touch them; packs are random: sequences of one token,
without a token, shorter than the chunks, padded in between and at the tail.
"""

from __future__ import annotations

import json
import random

import pytest

from checks.packing.packs import build
from ringproof.cluster import Cluster
from ringproof.errors import InputError
from ringproof.reference.attention.names import COMM_TYPES
from ringproof.reference.packing.sequences import PackedSequences, pack
from smoke import cases
from smoke.parity_variants import (
    Record,
    check_exact,
    check_low_precision,
    levels,
    measured,
    packed_case,
    slow,
    variants,
    worlds_and_levels,
)
from smoke.processes import ringproof

SMALL_HIERARCHIES = [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2), (1, 4), (4, 1)]
LARGE_HIERARCHIES = [(2, 4), (4, 2)]


@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("world", [1, 2, 3, 4, pytest.param(8, marks=slow)])
def test_a_flat_group_is_exact(
    cluster: Cluster, world: int, comm_type: str, record_property: Record
) -> None:
    check_exact(cluster, variants(world, comm_type, packed=True), record_property)


@worlds_and_levels(SMALL_HIERARCHIES, LARGE_HIERARCHIES)
def test_a_hierarchical_group_is_exact(
    cluster: Cluster, sizes: tuple[int, int], record_property: Record
) -> None:
    wanted = variants(sizes[0] * sizes[1], "a2a+p2p", sizes, packed=True)
    check_exact(cluster, wanted, record_property)


@pytest.mark.parametrize("comm_type", COMM_TYPES)
def test_many_sequences_are_exact(cluster: Cluster, comm_type: str) -> None:
    """Sixty documents; cut into chunks, or not padded at all and cut wherever a rank ends."""
    draw = random.Random(7)
    lengths = [draw.randint(1, 30) for _ in range(60)]
    packs = {
        "zigzag": pack(lengths, multiple=8),
        "contiguous": pack(lengths, total_multiple=4, tail="extend_last"),
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_low_precision_stays_near_one_rank(
    cluster: Cluster, dtype: str, record_property: Record
) -> None:
    packed = pack([5, 1, 17, 64, 40], multiple=8, tail="dummy", total_multiple=64)
    shape = {"packed": packed, "seq_len": packed.rows}
    check_low_precision(cluster, (2, 2), record_property, dtype=dtype, **shape)


RIGHT = build([(5, 8), (16, 16), (24, 24), (0, 16)], sequences=3, tail="dummy")
WRONG = {
    "none": RIGHT,
    "one token shifted": build([(4, 8), (16, 16), (24, 24), (0, 16)], sequences=3, tail="dummy"),
    "boundary shifted": build([(5, 8), (24, 24), (16, 16), (0, 16)], sequences=3, tail="dummy"),
    "sequences leak": build([(5, 8), (40, 40), (0, 16)], sequences=2, tail="dummy"),
    "padding seen": build([(8, 8), (16, 16), (24, 24), (0, 16)], sequences=3, tail="dummy"),
    "tail seen": build([(5, 8), (16, 16), (24, 24), (16, 16)], sequences=4, tail="none"),
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


# Tensors in place of a pack's integers, as capacity mode has them.


@slow
@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_a_flat_group_with_metadata_is_exact(
    cluster: Cluster, world: int, comm_type: str, record_property: Record
) -> None:
    wanted = variants(world, comm_type, packed=True)
    check_exact(cluster, wanted, record_property, cases.static_parity, fault="none")


@slow
@worlds_and_levels([(1, 1), (2, 1), (1, 2), (2, 2)], [(2, 4), (4, 2)])
def test_a_hierarchical_group_with_metadata_is_exact(
    cluster: Cluster, sizes: tuple[int, int], record_property: Record
) -> None:
    wanted = variants(sizes[0] * sizes[1], "a2a+p2p", sizes, packed=True)
    check_exact(cluster, wanted, record_property, cases.static_parity, fault="none")


@slow
@pytest.mark.parametrize("comm_type", COMM_TYPES)
def test_wrong_metadata_are_seen(cluster: Cluster, comm_type: str) -> None:
    """Negative controls: the other pack's, no dummy over the tail, padding left in the products."""
    sizes = levels(comm_type, 2, 2)
    fields = {"world": 4, "comm_type": comm_type, "hierarchical_sizes": sizes, "kv_heads": 4}
    wanted = [packed_case(cases.fixed_pack(1), **fields)]
    for fault in ("none", "stale", "hidden tail", "poison"):
        (found,) = measured(cluster, wanted, cases.static_parity, fault=fault)
        worst = max(found["max_abs_error"].values())
        assert worst <= 1e-10 if fault == "none" else worst > 1e-2, fault


def test_the_command_measures_a_pack() -> None:
    levels_and_rows = ("--comm", "a2a+p2p", "--hcp", "2,1", "--pack-rows", "128")
    packed = ("--lengths", "5,1,17,64", *levels_and_rows)
    done = ringproof("parity", "attention", *packed, "--json", "-")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["pass"], result["layout"], result["world"]) == (True, "thd", 2)
    assert result["case"]["packed"]["cu_seqlens"] == [0, 5, 6, 23, 87, 87]
    assert result["case"]["packed"]["cu_seqlens_padded"] == [0, 8, 12, 32, 96, 128]
    assert max(result["max_abs_error"].values()) <= 1e-10
