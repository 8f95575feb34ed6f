"""The cost of a step: worked by hand, monotone, deterministic, and its bytes those of the skill."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from checks.skills import test_hierarchical_arithmetic as skill
from ringproof.errors import InputError
from ringproof.reference.planning.hardware import H100, PRESETS
from ringproof.reference.planning.shapes import DCP_EXAMPLE, DEEPSEEK_V3, LLAMA3_8B, SHAPES
from ringproof.reference.planning.timing import StepCost, exchanged, reduction_seconds

SIZES = (1, 2, 4, 8, 16, 32, 64)
# Round numbers: 1e12 operations per second for everything, 1e9 bytes per second inside a node.
ROUND = replace(
    H100,
    peak_flops_per_second=2e12,
    attention_share=0.5,
    attention_half_rows=500,
    linear_share=0.5,
    intra_bytes_per_second=1e9,
    inter_bytes_per_second=1e8,
    intra_latency_seconds=1e-3,
    inter_latency_seconds=1e-2,
    layer_launch_seconds=1e-3,
)


def linear_flops(shape):
    return shape.layer_flops_per_token + shape.head_flops_per_token


def one(model, length, size):
    return float(model.cost(np.array([length]), size)[0])


def test_one_rank_by_hand():
    """Llama 3 8B, 1,000 tokens: attention at half of its rate, 3.5 passes, 32 layers."""
    model = StepCost(shape=LLAMA3_8B, machine=ROUND)
    attention = 32 * 3.5 * 1000**2 * 32 * 256 * (1500 / 1000) / 1e12
    linear = 3 * 15_009_316_864 * 1000 / 1e12
    assert one(model, 1000, 1) == pytest.approx(attention + linear, rel=1e-12)
    assert attention == pytest.approx(1.376, abs=1e-3)
    assert model.group_overhead(1) == 0
    assert model.microbatch_overhead == pytest.approx(0.032)


def test_an_exposed_ring_by_hand():
    """DeepSeek V3, 64 tokens on 2 ranks: messages take longer than the steps they hide behind."""
    model = StepCost(shape=DEEPSEEK_V3, machine=ROUND)
    step = 128 * 320 * (64**2 / 2 + 64 * 500) / 2 / 1e12
    message = 32 * 128 * 320 * 2 / 1e9
    assert message > 3 * step
    back = (3 * 192 + 2 * 128) / (192 + 128)  # three products of width 192, two of 128
    ring = (step + message) + (back * step + 2 * message)
    linear = 3 * linear_flops(DEEPSEEK_V3) * 32 / 1e12
    assert one(model, 64, 2) == pytest.approx(61 * ring + linear, rel=1e-12)
    # Forward one message, backward two: the gradients follow k and v.
    assert model.group_overhead(2) == pytest.approx(61 * 3 * 1e-3)


def test_a_hidden_ring_costs_its_latency_only():
    model = StepCost(shape=LLAMA3_8B, machine=H100)
    free = replace(H100, intra_bytes_per_second=1e15)
    long, short = 131072, 256
    assert one(model, long, 8) == one(replace(model, machine=free), long, 8)
    assert one(model, short, 8) > one(replace(model, machine=free), short, 8)


def test_exchanges_by_hand():
    """An all-to-all over 2 ranks moves half of q, k, v and out, forward and backward."""
    model = StepCost(shape=LLAMA3_8B, machine=ROUND, comm_type="a2a")
    attention = 3.5 * 32 * 256 * (1000**2 / 2 + 1000 * 500 / 2) / 1e12
    moved = 2 * 500 * (8192 + 8192 + 4096) / 2 / 1e9
    linear = 3 * 15_009_316_864 * 500 / 1e12
    assert one(model, 1000, 2) == pytest.approx(32 * (attention + moved) + linear, rel=1e-12)
    assert model.group_overhead(2) == pytest.approx(32 * 8 * 1e-3)
    across = replace(model, shape=replace(LLAMA3_8B, kv_heads=32))
    # 16 ranks on nodes of 8: of 16 parts 7 stay inside, 8 leave over links a tenth as fast.
    assert exchanged(8, 16) == (7 / 16, 8 / 16)
    moved = 2 * 1000 * (3 * 8192 + 8192) * 8 / 16 / 1e8
    attention = 3.5 * 32 * 256 * (16000**2 / 16 + 16000 * 500 / 16) / 1e12
    linear = 3 * linear_flops(across.shape) * 1000 / 1e12
    assert one(across, 16000, 16) == pytest.approx(32 * (attention + moved) + linear, rel=1e-12)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_gathering_by_hand(size):
    """Not hidden; and attention is called on chunks of half a share."""
    model = StepCost(shape=LLAMA3_8B, machine=ROUND, comm_type="all_gather")
    attention = 3.5 * 32 * 256 * (1000**2 / size + 1000 * 500 * 2) / 1e12
    moved = 3 * (size - 1) * 1000 / size * 4096 / 1e9
    linear = 3 * 15_009_316_864 * 1000 / size / 1e12
    assert one(model, 1000, size) == pytest.approx(32 * (attention + moved) + linear, rel=1e-12)
    # So many hops gather k and v forward; backward they are gathered again, and gradients return.
    assert model.group_overhead(size) == pytest.approx(32 * 3 * (size - 1) * 1e-3)


@pytest.mark.parametrize(
    ("comm_type", "sizes"),
    [("p2p", (1, 8)), ("a2a", (8, 1)), ("a2a+p2p", (4, 2)), ("a2a+p2p", (2, 4))],
)
def test_cost_charges_the_bytes_of_the_skill(comm_type, sizes):
    """With attention and everything else free, the time is bytes over bandwidth."""
    links = replace(ROUND, peak_flops_per_second=1e30)
    shape = replace(LLAMA3_8B, kv_heads=32)
    inner = sizes[0] if comm_type == "a2a+p2p" else 1
    model = StepCost(shape=shape, machine=links, comm_type=comm_type, inner_size=inner)
    shard = skill.Shard(
        q=100 * shape.q_bytes_per_token,
        kv=100 * shape.kv_bytes_per_token,
        out=100 * shape.out_bytes_per_token,
    )
    (forward,) = set(skill.sent_per_rank(skill.forward_messages(comm_type, shard, sizes)).values())
    exchange, ring = (sizes[0] - 1) * shard.exchanged / sizes[0], (sizes[1] - 1) * shard.kv
    assert forward == exchange + ring
    moved = forward + exchange + 2 * ring  # the backward's ring carries the gradients, too
    assert one(model, 800, 8) == pytest.approx(32 * moved / 1e9, rel=1e-9)


def models():
    for shape, machine, tp in itertools.product(SHAPES, PRESETS, (1, 2)):
        for comm_type in ("p2p", "all_gather", "a2a", "a2a+p2p"):
            inner = 2 if comm_type == "a2a+p2p" else 1
            yield StepCost(
                shape=shape, machine=machine, comm_type=comm_type, inner_size=inner, tp=tp
            )


def usable_sizes(model):
    return [size for size in SIZES if model.comm_type != "a2a" or model.kv_heads % size == 0]


def test_cost_never_falls_with_the_length():
    """All presets, types and sizes: every length to 4,096, and neighbours to a million."""
    far = np.unique(np.geomspace(4096, 1 << 20, 500).astype(np.int64))
    lengths = np.unique(np.concatenate((np.arange(1, 4097), far, far + 1)))
    checked = 0
    for model in models():
        for size in usable_sizes(model):
            assert never_falls(model, lengths, size), (model, size)
            checked += 1
    assert checked > 1500


def never_falls(model, lengths, size):
    return bool((np.diff(model.cost(lengths, size)) >= 0).all())


def test_a_rate_that_jumps_would_be_noticed():
    """Efficiency by table instead of formula: twice as fast from 2,048 tokens on."""

    class Jumping(StepCost):
        def cost(self, lengths, size):
            return super().cost(lengths, size) / np.where(lengths >= 2048, 2, 1)

    assert not never_falls(Jumping(shape=LLAMA3_8B, machine=H100), np.arange(1, 4097), 1)


def test_rank_time_grows_with_the_group():
    """More ranks never do less work in all: what a lower bound may build on."""
    lengths = np.unique(np.geomspace(1, 1 << 20, 200).astype(np.int64))
    for model in models():
        sizes = usable_sizes(model)
        spent = np.stack([size * model.cost(lengths, size) for size in sizes])
        if model.comm_type in ("p2p", "all_gather"):
            assert (np.diff(spent, axis=0) >= -1e-9 * spent[1:]).all(), model


def test_short_sequences_lose_by_being_split():
    """Eight ranks: a long sequence is nearly eight times as fast, a short one far from it."""
    model = StepCost(shape=DCP_EXAMPLE, machine=H100)

    def gain(length):
        whole = one(model, length, 1)
        return whole / (one(model, length, 8) + model.group_overhead(8))

    assert gain(131072) > 7
    assert gain(1024) < 3
    assert gain(256) < 1


def test_tensor_parallel_ranks_share_heads_work_and_node():
    alone, four = (StepCost(shape=LLAMA3_8B, machine=H100, tp=tp) for tp in (1, 4))
    assert one(alone, 8192, 1) == pytest.approx(4 * one(four, 8192, 1))
    assert (alone.node_ranks, four.node_ranks) == (8, 2)
    assert alone.inside(4) and not four.inside(4)
    assert not alone.inside(3), "3 does not divide 8: some group of 3 crosses"
    assert (alone.kv_heads, four.kv_heads) == (8, 2)
    many = StepCost(shape=LLAMA3_8B, machine=replace(H100, gpus_per_node=16), tp=16)
    assert many.kv_heads == 1, "eight heads over 16 ranks: one each, repeated"


def test_crossing_nodes_costs_more():
    small = replace(H100, gpus_per_node=4)
    for comm_type in ("p2p", "all_gather", "a2a"):
        inside = StepCost(shape=LLAMA3_8B, machine=H100, comm_type=comm_type)
        across = replace(inside, machine=small)
        assert one(across, 2048, 8) > one(inside, 2048, 8), comm_type
        assert one(across, 2048, 4) == one(inside, 2048, 4)
        assert across.group_overhead(8) > inside.group_overhead(8)


def test_gradients_cross_the_slowest_link():
    """1e9 weights in fp32: 8e9 bytes times (n - 1) / n, over all cards of a node."""
    assert reduction_seconds(1e9, 1, ROUND) == 0
    assert reduction_seconds(1e9, 8, ROUND) == pytest.approx(8 * 7 / 8)
    assert reduction_seconds(1e9, 16, ROUND) == pytest.approx(8 * 15 / 16 / 0.8)
    # Eight GPUs that share one rank's weights: each has only its own card to other nodes.
    assert reduction_seconds(1e9, 8, ROUND, tp=8) == pytest.approx(8 * 7 / 8 / 0.1)
    assert reduction_seconds(1e9, 4, ROUND, tp=2) == pytest.approx(8 * 3 / 4)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"comm_type": "ring"}, "comm-type"),
        ({"comm_type": "a2a+p2p"}, "inner-size"),
        ({"inner_size": 0}, "inner-size"),
        ({"inner_size": 2}, "inner-size"),
        ({"tp": 3}, "tp"),
        ({"tp": 16}, "tp"),
    ],
)
def test_contradictions_are_refused(changes, field):
    with pytest.raises(InputError, match=f"^{field}"):
        StepCost(shape=LLAMA3_8B, machine=H100, **changes)


def test_heads_that_cannot_be_shared_are_refused():
    model = StepCost(shape=LLAMA3_8B, machine=H100, comm_type="a2a")
    assert one(model, 100, 8) > 0
    with pytest.raises(InputError, match=r"16 ranks cannot share 8 key/value heads .* Transformer"):
        model.cost(np.array([100]), 16)
