"""The reference is the same program without CP: same data, same batch, same TP and PP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.rehearsal.test_shrink import small
from ringproof.launch.flags import Flags
from ringproof.launch.small.reference import reference
from ringproof.rehearsal.verdict.path import read_request

CONTEXT = ("--cp-comm-type", "--hierarchical-context-parallel-sizes", "--context-parallel-size",
           "--min-dynamic-context-parallel-size", "--dynamic-context-parallel",
           "--hybrid-context-parallel", "--sequence-packing-scheduler",
           "--max-seqlen-per-dp-cp-rank", "--pad-packed-seq-alignment",
           "--expert-model-parallel-size")  # fmt: skip
OPTIONS = frozenset(CONTEXT)


def pair(line: str, ranks: int) -> tuple[int, Flags, int, Flags]:
    before, flags = small(line, ranks)
    after = reference(before, OPTIONS)
    assert read_request(after.arguments).feature == "none" and after.dtype == before.dtype
    return before.ranks, flags, after.ranks, Flags(after.arguments)


STATIC = [
    ("--context-parallel-size 4", 64),
    ("--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2",
     64),
    ("--context-parallel-size 2 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2",
     64),
    ("--context-parallel-size 4 --expert-model-parallel-size 8 --num-experts 16", 64),
]  # fmt: skip


@pytest.mark.parametrize(("line", "ranks"), STATIC)
def test_only_cp_is_off(line: str, ranks: int) -> None:
    world, flags, fewer, after = pair(line, ranks)
    assert fewer * flags.integer("--context-parallel-size", 1) == world
    assert after.integer("--context-parallel-size", 1) == 1
    assert not after.has("--cp-comm-type")
    assert not after.has("--hierarchical-context-parallel-sizes")
    assert flags.without(*CONTEXT).words == after.without(*CONTEXT).words


def test_ep_shrinks_to_the_ranks_that_are_left() -> None:
    _, _, fewer, after = pair(STATIC[3][0], 64)
    expert = after.integer("--expert-model-parallel-size", 1)
    assert fewer % expert == 0 and after.integer("--num-experts", 0) % expert == 0


def test_packing_keeps_the_capacity_of_a_microbatch() -> None:
    line = ("--context-parallel-size 4 --use-varlen-dataset --sequence-packing-scheduler "
            "dp_balanced --max-seqlen-per-dp-cp-rank 2048")  # fmt: skip
    _, flags, _, after = pair(line, 8)
    budget = "--max-seqlen-per-dp-cp-rank"
    assert after.integer(budget, 0) == 4 * flags.integer(budget, 0)
    assert after.get("--sequence-packing-scheduler") == ("dp_balanced",)


@pytest.mark.parametrize(
    "line",
    [
        "--dynamic-context-parallel --max-seqlen-per-dp-cp-rank 1024 --use-varlen-dataset",
        "--dynamic-context-parallel --max-seqlen-per-dp-cp-rank 1024 --tensor-model-parallel-size "
        "2 --pipeline-model-parallel-size 2 --sequence-packing-scheduler default_dynamic_cp "
        "--min-dynamic-context-parallel-size 2",
        "--hybrid-context-parallel --max-seqlen-per-dp-cp-rank 1024 --context-parallel-size 2",
    ],
)
def test_dynamic_cp_becomes_one_replica_that_packs(line: str) -> None:
    world, flags, fewer, after = pair(line, 64)
    model = flags.integer("--tensor-model-parallel-size", 1)
    model *= flags.integer("--pipeline-model-parallel-size", 1)
    assert fewer == model
    assert not after.has("--dynamic-context-parallel") and not after.has(
        "--hybrid-context-parallel"
    )
    assert not after.has("--min-dynamic-context-parallel-size")
    assert after.get("--sequence-packing-scheduler") == ("dp_balanced",)
    budget = "--max-seqlen-per-dp-cp-rank"
    assert after.integer(budget, 0) == world // model * flags.integer(budget, 0)
    assert after.integer(budget, 0) >= after.integer("--seq-length", 0)
    assert flags.without(*CONTEXT).words == after.without(*CONTEXT).words


def test_a_program_without_cp_is_its_own_reference() -> None:
    world, flags, fewer, after = pair("--tensor-model-parallel-size 2", 8)
    assert fewer == world and flags.words == after.words


def test_a_vision_program_is_compared_without_sequence_parallelism() -> None:
    parallel = "--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel"
    before, _ = small(parallel, 8)
    options = OPTIONS | {"--sequence-parallel"}
    assert Flags(reference(before, options).arguments).has("--sequence-parallel")
    vision = replace(before, script="pretrain_vlm.py")
    assert not Flags(reference(vision, options).arguments).has("--sequence-parallel")
