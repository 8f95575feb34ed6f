"""The one loop: take a block, run its tiles, merge; and the same backwards.

What differs between communication types is where blocks come from (``blocks``) and what
surrounds the loop (``exchange``). The loop, the merge and every cast exist once, here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ringproof.reference.attention.blocks import BlockExchange, BlockShape
from ringproof.reference.attention.kernels import AttentionKernel, Gradients
from ringproof.reference.attention.merge import PartialSum, accumulation_dtype
from ringproof.reference.attention.steps import Step


@dataclass(frozen=True)
class LoopPlan:
    """All that one call of the loop needs beside the tensors.

    Args:
        steps: The step table of this rank.
        exchange: Delivers the blocks in the table's order.
        kernel: Local math.
        scale: Softmax scale.
    """

    steps: tuple[Step, ...]
    exchange: BlockExchange
    kernel: AttentionKernel
    scale: float


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
        shape = BlockShape.of(k, v)
        total = PartialSum((*q.shape[:3], v.shape[-1]), like=q)
        blocks = plan.exchange.blocks(shape.pack(k, v))
        for step, block in zip(plan.steps, blocks, strict=True):
            key, value = shape.split(block)
            for tile in step.tiles:
                part = plan.kernel.forward(
                    q[:, tile.q.rows], key[:, tile.kv.rows], value[:, tile.kv.rows],
                    causal=tile.causal, scale=plan.scale,
                )  # fmt: skip
                total.add(tile.q, *part)
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
        return (*_loop_backward(ctx.plan, ctx.saved_tensors, grad_out), None)


def _loop_backward(
    plan: LoopPlan, saved: tuple[torch.Tensor, ...], grad_out: torch.Tensor
) -> Gradients:
    q, k, v, out, lse = saved
    shape, dtype = BlockShape.of(k, v), accumulation_dtype(q.dtype)
    dq = torch.zeros(q.shape, dtype=dtype, device=q.device)
    sink = plan.exchange.gradient_sink()
    for step, block in zip(plan.steps, plan.exchange.blocks(shape.pack(k, v)), strict=True):
        key, value = shape.split(block)
        gradient = torch.zeros(block.shape, dtype=dtype, device=q.device)
        dk, dv = shape.split(gradient)
        for tile in step.tiles:
            rows, columns = tile.q.rows, tile.kv.rows
            parts = plan.kernel.backward(
                grad_out[:, rows], (q[:, rows], key[:, columns], value[:, columns]),
                out[:, rows], lse[:, rows], causal=tile.causal, scale=plan.scale,
            )  # fmt: skip
            dq[:, rows] += parts[0]
            dk[:, columns] += parts[1]
            dv[:, columns] += parts[2]
        sink.add(gradient)
    dk, dv = shape.split(sink.total())
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
