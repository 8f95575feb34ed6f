"""The attention loop: take a block, run its tiles, merge; and the same in the backward.

What differs between communication types is where blocks come from (``blocks``) and what
surrounds the loop (``exchange``). The loop, the merge and every cast exist once, here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ringproof.reference.attention.blocks import BlockExchange, BlockShape
from ringproof.reference.attention.calls import Call, SingleTile
from ringproof.reference.attention.kernels import (
    AttentionKernel,
    FlashKernel,
    ReferenceKernel,
    TensorTriple,
)
from ringproof.reference.attention.masks import MaskedKernel
from ringproof.reference.attention.merge import PartialSum, accumulation_dtype
from ringproof.reference.attention.steps import Step, Tile


@dataclass(frozen=True)
class LoopPlan:
    """All that one call of the loop needs beside the tensors.

    Args:
        blocks: Delivers the blocks in the table's order.
        kernel: Local math of tiles without a mask of their own.
    """

    steps: tuple[Step, ...]
    blocks: BlockExchange
    kernel: AttentionKernel
    scale: float

    def calls(self, step: Step, q: torch.Tensor) -> Sequence[Call]:
        """The kernel calls of a step: those that were prepared, if the kernel can take them."""
        if step.calls and q.shape[0] == 1 and isinstance(self.kernel, FlashKernel):
            return step.calls
        return [SingleTile(tile, self._kernel_of(tile)) for tile in step.tiles]

    def _kernel_of(self, tile: Tile) -> AttentionKernel | MaskedKernel:
        if tile.mask is None:
            return self.kernel
        on_cpu = tile.mask.queries[0].device.type == "cpu"
        return MaskedKernel(tile.mask, self.kernel if on_cpu else ReferenceKernel())


class BlockwiseAttention(torch.autograd.Function):
    """Rotate or gather blocks forward; the same blocks again, their gradients home, backward.

    ``(q [B, S, H, D], k [B, S, G, D], v [B, S, G, V], plan) -> (out [B, S, H, V],
    lse [B, S, H])``. The LSE is not differentiable. Saves local tensors only: the blocks move a
    second time in the backward instead of being kept.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: LoopPlan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks in table order, merged; see the class."""
        with torch.autocast(q.device.type, enabled=False):  # the data type is the caller's
            total = _loop_forward(plan, q, k, v)
        out = total.out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, total.lse)
        ctx.plan = plan
        ctx.mark_non_differentiable(total.lse)
        return out, total.lse

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: torch.Tensor, _: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        """The same blocks again, their gradients home; see the class."""
        with torch.autocast(grad_out.device.type, enabled=False):
            return (*_loop_backward(ctx.plan, ctx.saved_tensors, grad_out), None)


def _loop_forward(plan: LoopPlan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> PartialSum:
    shape = BlockShape.of(k, v)
    total = PartialSum((*q.shape[:3], v.shape[-1]), like=q)
    for step, block in zip(plan.steps, plan.blocks.blocks(shape.pack(k, v)), strict=True):
        key, value = shape.split(block)
        for call in plan.calls(step, q):
            total.add(call.rows, *call.forward(q, key, value, plan.scale))
    return total


def _add_rows(total: torch.Tensor, rows: slice | torch.Tensor, part: torch.Tensor) -> None:
    if isinstance(rows, slice):
        total[:, rows] += part
    else:
        total.index_add_(1, rows, part.to(total.dtype))


def _loop_backward(
    plan: LoopPlan, saved: tuple[torch.Tensor, ...], grad_out: torch.Tensor
) -> TensorTriple:
    q, k, v, out, lse = saved
    shape, dtype = BlockShape.of(k, v), accumulation_dtype(q.dtype)
    dq = torch.zeros(q.shape, dtype=dtype, device=q.device)
    sink = plan.blocks.gradient_sink()
    for step, block in zip(plan.steps, plan.blocks.blocks(shape.pack(k, v)), strict=True):
        inputs = (q, *shape.split(block))
        gradient = torch.zeros(block.shape, dtype=dtype, device=q.device)
        sums = (dq, *shape.split(gradient))
        for call in plan.calls(step, q):
            parts = call.backward(grad_out, inputs, (out, lse), plan.scale)
            indices = (call.rows, call.columns, call.columns)
            for total, part, index in zip(sums, parts, indices, strict=True):
                _add_rows(total, index, part)
        sink.add(gradient)
    dk, dv = shape.split(sink.total())
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
