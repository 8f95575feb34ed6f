"""Pitfalls of rows that belong to no sequence: undefined in a replay, and NaN in a gradient.

Each test does it right first, bit by bit as eager, then makes the mistake.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

from checks.graphs.captures import Seen, compared, equal, graph, results, tensor
from checks.graphs.layer_slots import CAPACITY, PACKS, microbatch
from ringproof.errors import InputError
from ringproof.reference.attention.attention import context_parallel_attention
from ringproof.reference.attention.masks import RowMask
from ringproof.reference.model.static import load, static_batch
from ringproof.reference.packing.capacity import to_capacity
from ringproof.reference.packing.sequences import pack
from ringproof.reference.topology.dynamic import ContextParallelGroup


class WritesInside(torch.autograd.Function):
    """A kernel for packed rows, as fused RoPE: writes those inside of the padded boundaries."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cu_seqlens_padded: torch.Tensor) -> torch.Tensor:
        inside = torch.arange(len(x)) < cu_seqlens_padded[-1]
        ctx.save_for_backward(inside)
        return torch.where(inside.unsqueeze(1), -x, torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return torch.where(inside.unsqueeze(1), -gradient, 0.0), None


@pytest.mark.parametrize("dummy", [True, False])
def test_rows_past_the_last_boundary_are_undefined(dummy: bool) -> None:
    """The loss masks padding, so it stays finite; the weight gradient has 0 times NaN."""
    packed = pack(PACKS[0], multiple=8)
    covered = to_capacity(packed, CAPACITY).cu_seqlens_padded
    hidden = (*packed.cu_seqlens_padded, *packed.cu_seqlens_padded[-1:] * 2)
    assert (covered[-1], hidden[-1], len(covered)) == (32, 16, len(hidden))
    weight, real = tensor(6, 3, seed=1, grad=True), torch.arange(32) < 16

    def function(x: torch.Tensor, boundaries: torch.Tensor) -> torch.Tensor:
        rotated = WritesInside.apply(x, boundaries)
        return torch.where(real.unsqueeze(1), rotated @ weight, 0.0)

    static = torch.tensor(covered, dtype=torch.int32)
    graphed = graph(function, tensor(32, 6, grad=True), static, parameters={"weight": weight})
    given = [tensor(32, 6, seed=2, grad=True), static.clone()]
    wanted = results(function, given, [weight])
    given[1] = torch.tensor(covered if dummy else hidden, dtype=torch.int32)
    output, input_gradient, weight_gradient = results(graphed, given, [weight])
    assert torch.equal(output, wanted[0])
    assert torch.equal(input_gradient, wanted[1])
    assert torch.equal(weight_gradient, wanted[2]) == dummy
    assert bool(weight_gradient.isnan().all()) == (not dummy)


def undefined_rows(alone: ContextParallelGroup) -> Seen:
    """NaN in padded rows of a captured ring whose keys are not blanked first."""
    static = static_batch(microbatch(PACKS[0], alone))
    batch, table = microbatch(PACKS[1], alone), static.metadata.table

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, _ = context_parallel_attention(q, k, v, comm_type="p2p", group=alone.flat, table=table)
        return out

    def inputs(like: Any, seed: int) -> list[torch.Tensor]:
        drawn = [tensor(like.rows, 2, 8, seed=seed + i) for i in range(3)]
        padding = (~like.real).nonzero()[:, 0]
        return [x.index_fill(0, padding, torch.nan).requires_grad_() for x in drawn]

    given = inputs(batch, 5)
    load(static, batch)
    wanted = results(attention, given)
    sound = equal(results(graph(attention, *inputs(batch, 1)), given), wanted)
    with patch.object(RowMask, "of_keys", lambda self, x: x):
        broken = graph(attention, *inputs(batch, 1))
    return compared(results(broken, given), wanted, sound=sound)


def test_undefined_rows_poison_the_gradients_of_attention(alone: ContextParallelGroup) -> None:
    """A weight of zero does not keep NaN out."""
    seen = undefined_rows(alone)
    assert (seen.sound, seen.silent, seen.said) == (True, "NaN", "")


class ClearsBySlice(torch.autograd.Function):
    """A ring's backward that clears rows past the last boundary: up to TE 2.17 by a slice."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cu_seqlens_padded: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cu_seqlens_padded)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (boundaries,) = ctx.saved_tensors
        gradient = gradient * 2
        gradient[boundaries[-1] :].zero_()
        return gradient, None


class ClearsByMask(ClearsBySlice):
    """Since TE 2.18."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (boundaries,) = ctx.saved_tensors
        past = torch.arange(len(gradient)) >= boundaries[-1]
        return (gradient * 2).masked_fill(past.unsqueeze(1), 0.0), None


def test_clearing_rows_by_a_number_of_the_device_is_refused() -> None:
    static = [tensor(8, 2, grad=True), torch.tensor([0, 4, 6])]
    line = ClearsBySlice.backward.__code__.co_firstlineno + 4
    with pytest.raises(
        InputError,
        match=r"part, backward: (\.item\(\)|a tensor as a Python index) at "
        rf"graphs/test_pitfalls_rows.py:{line}: "
        "the host reads a value, which synchronises",
    ):
        graph(ClearsBySlice.apply, *static)
    given = [tensor(8, 2, seed=4, grad=True), torch.tensor([0, 2, 4])]
    graphed = graph(ClearsByMask.apply, *static)
    assert equal(results(graphed, given), results(ClearsBySlice.apply, given))
