"""Transformer Engine's own context parallel attention against dense attention, in every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def attend(case: dict[str, Any]) -> dict[str, float]:
    """Largest differences of output and gradients from dense attention, in float64."""
    from transformer_engine.pytorch import DotProductAttention

    rank, world = dist.get_rank(), dist.get_world_size()
    heads, groups, length, width = case["heads"], case["groups"], case["length"], 8
    generator = torch.Generator().manual_seed(7)
    shape = {"q": heads, "k": groups, "v": groups}
    whole = {
        name: torch.randn(length, 1, count, width, dtype=torch.float64, generator=generator)
        for name, count in shape.items()
    }
    chunks = [rank, 2 * world - 1 - rank]
    size = length // (2 * world)
    rows = torch.cat([torch.arange(c * size, (c + 1) * size) for c in chunks])
    local = {name: value[rows].clone().requires_grad_() for name, value in whole.items()}
    group = dist.group.WORLD
    if case["comm"] == "a2a+p2p":
        inner = case["levels"][0]
        group = _levels(inner)
    attention = DotProductAttention(
        heads, width, num_gqa_groups=groups, qkv_format="sbhd", attn_mask_type="causal",
        attention_dropout=0.0, layer_number=1,
    )  # fmt: skip
    attention.set_context_parallel_group(
        group, list(range(world)), torch.cuda.Stream(), case["comm"]
    )
    out = attention(*local.values())
    seed = torch.randn(length, 1, heads * width, dtype=torch.float64, generator=generator)
    out.backward(seed[rows])
    dense = {name: value.clone().requires_grad_() for name, value in whole.items()}
    expected = _dense(dense["q"], dense["k"], dense["v"])
    expected.backward(seed)
    errors = {"out": float((out - expected[rows]).abs().max())}
    for name, value in local.items():
        errors[name] = float((value.grad - dense[name].grad[rows]).abs().max())
    return errors


def _levels(inner: int) -> list[Any]:
    rank, world = dist.get_rank(), dist.get_world_size()
    a2a = [dist.new_group(list(range(start, start + inner))) for start in range(0, world, inner)]
    p2p = [dist.new_group(list(range(start, world, inner))) for start in range(inner)]
    return [a2a[rank // inner], p2p[rank % inner]]


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads = q.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("sbhd,tbhd->bhst", q, k) * q.shape[-1] ** -0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
    return torch.einsum("bhst,tbhd->sbhd", weights, v).reshape(*q.shape[:2], -1)
