"""All sequences of a step in few kernel calls: how many, and what they compute.

That the stacked calls are exact for any pack is shown by ``test_packed``, whose ranks use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch

from checks.attention.players import play
from checks.attention.test_packed import TOLERANCE, dense, random_inputs, worst
from ringproof.reference.attention import packed as packed_calls
from ringproof.reference.attention.kernels import FlashKernel, ReferenceKernel
from ringproof.reference.attention.packed import Call, TileBatch, VarlenTiles, prepared_calls
from ringproof.reference.attention.steps import Tile, step_table
from ringproof.reference.packing.sequences import pack
from ringproof.reference.packing.shards import Sharding

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
        assert sum(isinstance(call, Tile) and len(call.q) >= 1024 for call in calls) == 1
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
        calls = tuple(packed_calls._varlen([tile], CPU) for tile in tiles[:1])
        return (packed_calls._varlen(tiles, CPU),) if len(tiles) > 1 else calls

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
    call = packed_calls._varlen(tiles, torch.device("meta"))
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
