"""Who meets whom, and what comes out, with all ranks played in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.attention.players import play
from checks.packing.packs import build, packs, random_pack
from ringproof.reference.attention import calls as attention_calls
from ringproof.reference.attention.calls import (
    Call,
    SingleTile,
    TileBatch,
    VarlenTiles,
    prepared_calls,
)
from ringproof.reference.attention.dense import DenseResult, dense_packed_attention
from ringproof.reference.attention.kernels import FlashKernel, ReferenceKernel
from ringproof.reference.attention.names import KERNEL_NAMES
from ringproof.reference.attention.steps import Step, Tile, step_table
from ringproof.reference.packing.partition import PARTITIONS, Span
from ringproof.reference.packing.sequences import PackedSequences, pack
from ringproof.reference.packing.shards import Sharding

Pairs = Counter[tuple[int, int]]


def pairs_met(tables: Sequence[tuple[Step, ...]], shards: Sequence[tuple[Span, ...]]) -> Pairs:
    """How often each (query, key) pair of global positions meets over all ranks and steps."""
    held = [[p for span in shard for p in range(span.start, span.stop)] for shard in shards]
    return Counter(
        pair
        for rank, table in enumerate(tables)
        for step in table
        for tile in step.tiles
        for pair in pairs_of(tile, held[rank], held[step.source])
    )


def pairs_of(tile: Tile, queries: list[int], keys: list[int]) -> Iterator[tuple[int, int]]:
    """The pairs that one tile lets meet."""
    for row, query in enumerate(queries[tile.q.index]):
        seen = keys[tile.kv.index]
        yield from ((query, key) for key in (seen[: row + 1] if tile.causal else seen))


def tables_of(sharding: Sharding, *, causal: bool = True) -> list[tuple[Step, ...]]:
    """The step tables of all ranks."""
    return [step_table(sharding, rank, causal=causal) for rank in range(len(sharding.shards))]


@given(st.integers(1, 7), st.integers(1, 3), st.sampled_from(PARTITIONS), st.booleans())
def test_every_visible_pair_meets_once(size: int, chunk: int, partition: str, causal: bool) -> None:
    seq_len = 2 * size * chunk
    sharding = Sharding.of_sequence(seq_len, size, partition)
    tables = tables_of(sharding, causal=causal)
    assert pairs_met(tables, sharding.shards) == visible(pack([seq_len]), causal=causal)


@given(st.integers(1, 7), st.sampled_from(PARTITIONS), st.booleans())
def test_blocks_come_in_ring_order(size: int, partition: str, causal: bool) -> None:
    """In every step, each rank's block is the one its predecessor had in the step before."""
    tables = tables_of(Sharding.of_sequence(4 * size, size, partition), causal=causal)
    for rank in range(size):
        for step in range(1, size):
            assert tables[rank][step].source == tables[(rank - 1) % size][step - 1].source


def area(tile: Tile) -> float:
    full = len(tile.q) * len(tile.kv)
    return full / 2 if tile.causal else full


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_zigzag_ranks_work_alike_in_every_step(size: int) -> None:
    """That is what zigzag is for: no rank waits for another, step by step."""
    for partition, works in (("zigzag", {1}), ("contiguous", {1, 2})):
        tables = tables_of(Sharding.of_sequence(16 * size, size, partition))
        areas = [{sum(map(area, table[step].tiles)) for table in tables} for step in range(size)]
        assert {len(work) for work in areas} == works


# float64, sums of at most a hundred terms of order one: rounding stays near 1e-14.
TOLERANCE = 1e-10
TENSORS = ("out", "lse", "dq", "dk", "dv")


def visible(packed: PackedSequences, *, causal: bool) -> Pairs:
    """The mask, pair by pair, from lengths and boundaries alone."""
    return Counter(
        (first + query, first + key)
        for first, length in zip(packed.cu_seqlens_padded, packed.lengths, strict=False)
        for query in range(length)
        for key in range(query + 1 if causal else length)
    )


def tables_pairs(sharding: Sharding, *, causal: bool) -> Pairs:
    return pairs_met(tables_of(sharding, causal=causal), sharding.shards)


@given(st.integers(1, 7), st.data(), st.sampled_from(PARTITIONS), st.booleans())
def test_every_visible_pair_meets_once_and_no_other(
    size: int, data: st.DataObject, partition: str, causal: bool
) -> None:
    packed = data.draw(packs(2 * size))
    sharding = Sharding.of_pack(packed, size, partition)
    assert tables_pairs(sharding, causal=causal) == visible(packed, causal=causal)


@given(st.integers(1, 3), st.integers(1, 3), st.data(), st.sampled_from(PARTITIONS))
def test_gathered_shards_are_shards(
    inner: int, outer: int, data: st.DataObject, partition: str
) -> None:
    """What a2a+p2p relies on: after the all-to-all the outer ring is a ring like any other."""
    packed = data.draw(packs(2 * inner * outer))
    flat = Sharding.of_pack(packed, inner * outer, partition)
    ring = flat.gathered(inner)
    assert len(ring.shards) == outer
    assert tables_pairs(ring, causal=True) == visible(packed, causal=True)


def random_inputs(packed: PackedSequences, seed: int, heads: tuple[int, int]) -> list[torch.Tensor]:
    """q, k, v and the output's gradient ``[1, T, heads, width]``; NaN in every row of padding."""
    generator = torch.Generator().manual_seed(seed)
    padding = torch.ones(packed.rows, dtype=torch.bool)
    for span in packed.real_spans:
        padding[span.index] = False
    found = []
    for count, width in ((heads[0], 8), (heads[1], 8), (heads[1], 12), (heads[0], 12)):
        tensor = torch.randn(1, packed.rows, count, width, generator=generator, dtype=torch.float64)
        tensor[:, padding] = torch.nan
        found.append(tensor)
    return found


def dense(packed: PackedSequences, inputs: list[torch.Tensor], *, causal: bool) -> DenseResult:
    found = dense_packed_attention(*(t[0] for t in inputs), packed=packed, causal=causal)
    return DenseResult(*(getattr(found, name).unsqueeze(0) for name in TENSORS))


def worst(found: DenseResult, right: DenseResult) -> float:
    """Largest difference over all tensors; NaN counts as infinite, equal infinities as none."""
    differences = []
    for name in TENSORS:
        a, b = getattr(found, name), getattr(right, name)
        differences.append((a - b).abs().masked_fill(a == b, 0.0).nan_to_num(torch.inf).max())
    return float(max(differences))


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([1, 2, 3, 4, 8]),
    st.data(),
    st.sampled_from(PARTITIONS),
    st.booleans(),
    st.sampled_from(KERNEL_NAMES),
    st.sampled_from([(4, 4), (4, 2), (3, 1)]),
)
def test_outputs_lse_and_gradients_are_the_oracles(
    size: int,
    data: st.DataObject,
    partition: str,
    causal: bool,
    kernel: str,
    heads: tuple[int, int],
) -> None:
    packed = data.draw(packs(2 * size))
    inputs = random_inputs(packed, seed=packed.rows, heads=heads)
    sharding = Sharding.of_pack(packed, size, partition)
    found = play(inputs, sharding, causal=causal, kernel=kernel)
    assert worst(found, dense(packed, inputs, causal=causal)) <= TOLERANCE


def faults(packed: PackedSequences, size: int) -> dict[str, Sharding]:
    """What goes wrong in real packs, on the right shards."""
    right = Sharding.of_pack(packed, size, "zigzag")
    first, *others = right.sequences
    rows = Span(packed.cu_seqlens_padded[0], packed.cu_seqlens_padded[1])
    return {
        "shifted": replace(right, sequences=(Span(first.start, first.stop - 1), *others)),
        "leak": replace(right, sequences=(Span(first.start, others[0].stop), *others[1:])),
        "unmasked padding": replace(right, sequences=(rows, *others)),
    }


@pytest.mark.parametrize("fault", ["shifted", "leak", "unmasked padding"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_fault_is_seen(fault: str, size: int) -> None:
    """Negative control, with finite padding: it is not NaN that gives the fault away."""
    packed = build([(5, 8), (16, 16)], sequences=2)
    inputs = [tensor.nan_to_num(0.5) for tensor in random_inputs(packed, seed=2, heads=(4, 2))]
    right = dense(packed, inputs, causal=True)
    assert worst(play(inputs, Sharding.of_pack(packed, size, "zigzag"), causal=True), right) < 1e-10
    assert worst(play(inputs, faults(packed, size)[fault], causal=True), right) > 1e-2


def test_the_oracle_is_one_sequence_at_a_time() -> None:
    """Against torch's own attention with a mask over the whole pack, block by block."""
    packed = random_pack(11, 4)
    q, k, v, _ = (t.nan_to_num(1.0) for t in random_inputs(packed, seed=3, heads=(4, 4)))
    mask = torch.zeros(packed.rows, packed.rows, dtype=torch.bool)
    for query, key in visible(packed, causal=True):
        mask[query, key] = True
    right = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask
    ).transpose(1, 2)
    found = dense(packed, [q, k, v, torch.ones_like(right)], causal=True)
    real = mask.any(1)
    assert real.any()
    assert not real.all()
    assert (found.out - right)[:, real].abs().max() <= TOLERANCE
    assert found.out[:, ~real].eq(0).all()


CPU = torch.device("cpu")


@pytest.mark.parametrize("causal", [True, False])
def test_equal_sequences_are_one_call_of_a_step(causal: bool) -> None:
    packed = pack([64] * 50, multiple=8)
    sharding = Sharding.of_pack(packed, 4, "zigzag")
    inputs = random_inputs(packed, seed=0, heads=(2, 2))
    with patch.object(
        FlashKernel, "forward", autospec=True, side_effect=FlashKernel.forward
    ) as one:
        found = play(inputs, sharding, causal=causal)
    assert one.call_count == 4 * 4  # ranks and steps
    assert worst(found, dense(packed, inputs, causal=causal)) <= TOLERANCE


def test_sequences_of_any_length_are_few_calls() -> None:
    """At most a quarter of a stacked call is padding; a long tile is a call of its own."""
    lengths = [*range(8, 1000, 8), 8192]
    sharding = Sharding.of_pack(pack(lengths, multiple=8), 4, "zigzag")
    for step in step_table(sharding, 1, causal=True):
        calls = prepared_calls(step.tiles, CPU)
        assert len(calls) <= len(step.tiles) / 4
        assert sum(isinstance(call, SingleTile) and len(call.tile.q) >= 1024 for call in calls) == 1
        for call in calls:
            if isinstance(call, TileBatch):
                assert len(call.rows) >= call.shape[0] * call.shape[1] * 0.75


def _dense_tile(
    tile: tuple[slice, slice], *tensors: torch.Tensor, causal: bool, scale: float
) -> Sequence[torch.Tensor]:
    """Output, LSE and, given more tensors, the gradients of one tile by the formula."""
    q, k, v, *rest = tensors
    queries, keys = tile
    kernel = ReferenceKernel()
    block = (q[None, queries], k[None, keys], v[None, keys])
    if not rest:
        return [t[0] for t in kernel.forward(*block, causal=causal, scale=scale)]
    grad, out, lse = (tensor[None, queries] for tensor in rest)
    return [t[0] for t in kernel.backward(grad, block, out, lse, causal=causal, scale=scale)]


def _tiles_of(rows: torch.Tensor, columns: torch.Tensor) -> list[tuple[slice, slice]]:
    assert rows.dtype == columns.dtype == torch.int32, "the operator reads 32-bit offsets"
    edges = (pairwise(rows.tolist()), pairwise(columns.tolist()))
    return [(slice(*one), slice(*other)) for one, other in zip(*edges, strict=True)]


def flash_forward(*arguments: Any, scale: float) -> tuple[Any, ...]:
    """Stands in for ``aten::_flash_attention_forward``: rows ``[m, H, D]``, LSE ``[H, m]``."""
    q, k, v, cu_q, cu_k, most_q, most_k, _, causal, _ = arguments
    tiles = _tiles_of(cu_q, cu_k)
    longest = [max(rows.stop - rows.start for rows in kind) for kind in zip(*tiles, strict=True)]
    assert [most_q, most_k] == longest
    parts = [_dense_tile(tile, q, k, v, causal=causal, scale=scale) for tile in tiles]
    out, lse = (torch.cat(part) for part in zip(*parts, strict=True))
    return out, lse.t(), None, None, None


def flash_backward(*arguments: Any, scale: float) -> tuple[torch.Tensor, ...]:
    """Stands in for ``aten::_flash_attention_backward``."""
    grad, q, k, v, out, lse, cu_q, cu_k, _, _, _, causal, *_ = arguments
    given = (q, k, v, grad, out, lse.t())
    parts = [
        _dense_tile(tile, *given, causal=causal, scale=scale) for tile in _tiles_of(cu_q, cu_k)
    ]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


@pytest.mark.parametrize("partition", ["zigzag", "contiguous"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_gpu_gets_one_call_of_the_variable_length_kernel(partition: str, causal: bool) -> None:
    """By a stand-in of the operator on CPUs; the operator itself runs on GPUs only."""
    packed = pack([13, 1, 32, 7, 24], multiple=8)
    sharding = Sharding.of_pack(packed, 4, partition)
    inputs = random_inputs(packed, seed=0, heads=(4, 2))

    def varlen(tiles: Sequence[Tile], device: torch.device) -> tuple[Call, ...]:
        calls = tuple(attention_calls._varlen([tile], CPU) for tile in tiles[:1])
        return (attention_calls._varlen(tiles, CPU),) if len(tiles) > 1 else calls

    with (
        patch("checks.attention.players.prepared_calls", varlen),
        patch.object(torch.ops.aten, "_flash_attention_forward", flash_forward),
        patch.object(torch.ops.aten, "_flash_attention_backward", flash_backward),
    ):
        found = play(inputs, sharding, causal=causal)
    assert worst(found, dense(packed, inputs, causal=causal)) <= TOLERANCE


def test_the_operator_takes_these_arguments() -> None:
    """Torch's own shapes of the operator, on the meta device."""
    tiles = [Tile(one.q, one.kv, one.causal) for one in _two_tiles()]
    call = attention_calls._varlen(tiles, torch.device("meta"))
    assert isinstance(call, VarlenTiles)
    q, k, v, grad = (
        torch.empty(1, 16, heads, 24, device="meta", dtype=torch.bfloat16) for heads in (4, 2, 2, 4)
    )
    out, lse = call.forward(q, k, v, 1.0)
    assert (out.shape, lse.shape) == ((1, 12, 4, 24), (1, 12, 4))
    whole = torch.empty(1, 16, 4, 24, device="meta", dtype=torch.bfloat16)
    sums = torch.empty(1, 16, 4, device="meta")
    gradients = call.backward(grad, (q, k, v), (whole, sums), 1.0)
    assert [t.shape for t in gradients] == [(1, 12, 4, 24), (1, 12, 2, 24), (1, 12, 2, 24)]


def _two_tiles() -> tuple[Tile, ...]:
    sharding = Sharding.of_pack(pack([5, 7], multiple=8), 1, "zigzag")
    return step_table(sharding, 0, causal=True)[0].tiles


def test_wrong_tables_are_seen() -> None:
    """Negative control: a leak across two sequences, one token of padding, a lost tile."""
    packed = build([(5, 8), (8, 8)], sequences=2)
    right = Sharding.of_pack(packed, 2, "zigzag")
    expected = visible(packed, causal=True)
    assert tables_pairs(right, causal=True) == expected
    leak = replace(right, sequences=(Span(0, 16),))
    assert tables_pairs(leak, causal=True) != expected
    padding = replace(right, sequences=(Span(0, 6), Span(8, 16)))
    assert tables_pairs(padding, causal=True) != expected
    lost = replace(right, sequences=(Span(8, 16),))
    assert tables_pairs(lost, causal=True) != expected


def test_tiles_stay_small() -> None:
    """No tile spans two sequences: the largest mask is that of the longest sequence's shard."""
    packed = pack([64] * 50, multiple=8)
    table = step_table(Sharding.of_pack(packed, 4, "zigzag"), 1, causal=True)
    assert max(len(tile.kv) for step in table for tile in step.tiles) == 16
    assert max(len(step.tiles) for step in table) == 50


def test_a_dropped_step_is_seen() -> None:
    """Negative control: the oracle above must notice one missing block."""
    sharding = Sharding.of_sequence(16, 4, "zigzag")
    tables = tables_of(sharding)
    tables[2] = tables[2][:-1]
    assert pairs_met(tables, sharding.shards) != visible(pack([16]), causal=True)
