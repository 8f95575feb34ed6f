"""Latent attention on one rank against a loop over tokens and heads, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from checks.model.dense import turn
from checks.model.whole_model import distance, rows
from ringproof.errors import InputError
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import LatentShape, ModelConfig, preset
from ringproof.reference.model.mla import LatentAttention
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.topology.dynamic import ContextParallelGroup
from smoke.model_batches import random_sequences, rank_batch

MOONLIGHT = preset("moonlight-tiny")
# No two widths are equal, so that none can stand for another.
UNEQUAL = replace(
    MOONLIGHT,
    latent=LatentShape(heads=3, latent_width=20, content_width=10, rotary_width=6, value_width=14),
)
Tensors = Mapping[str, torch.Tensor]


def latent_attention(config: ModelConfig, *, size: int = 1) -> LatentAttention:
    ranks = TensorParallel() if size == 1 else TensorParallel(object(), size)
    builder = Builder(3, torch.float64, torch.device("cpu"), ranks, registry={})
    return LatentAttention(config, builder.scope("attention"))


def naive(
    x: torch.Tensor, weights: Tensors, batch: PackedBatch, config: ModelConfig
) -> torch.Tensor:
    """One token at a time."""
    shape, base = config.latent, config.rotary_base
    assert shape is not None
    content, rotary = shape.content_width, shape.rotary_width
    projected = []
    for row, position in zip(x, batch.positions.tolist(), strict=True):
        query = (weights["query.weight"] @ row).view(shape.heads, content + rotary)
        both = weights["latent.weight"] @ row
        latent, shared = both[: shape.latent_width], both[shape.latent_width :]
        size = (latent.pow(2).sum() / len(latent) + config.norm_epsilon).sqrt()
        latent = weights["norm.weight"] * latent / size
        expanded = (weights["expand.weight"] @ latent).view(shape.heads, -1)
        key = turn(shared, base, position)
        queries = [torch.cat((q[:content], turn(q[content:], base, position))) for q in query]
        keys = [torch.cat((k[:content], key)) for k in expanded]
        projected.append((queries, keys, [k[content:] for k in expanded]))
    outputs = []
    for row in range(len(x)):
        seen = [
            other
            for other in range(row + 1)
            if batch.real[other] and batch.real[row] and batch.entries[row] == batch.entries[other]
        ]
        if not seen:
            outputs.append(torch.zeros_like(x[row]))
            continue
        heads = []
        for head in range(shape.heads):
            query = projected[row][0][head]
            scores = torch.stack([query @ projected[other][1][head] for other in seen])
            shares = (scores / math.sqrt(content + rotary)).softmax(0)
            heads.append(shares @ torch.stack([projected[other][2][head] for other in seen]))
        outputs.append(weights["out.weight"] @ torch.cat(heads))
    return torch.stack(outputs)


@pytest.mark.parametrize("config", [MOONLIGHT, UNEQUAL], ids=["moonlight", "unequal"])
def test_the_loop_agrees(alone: ContextParallelGroup, config: ModelConfig) -> None:
    """Output and every gradient."""
    batch = rank_batch(random_sequences([13, 1, 16, 7]), alone, tail_rows=8)
    module = latent_attention(config)
    with torch.no_grad():  # a norm that starts at 1 hides where it is applied
        module.norm.weight.mul_(rows(1, seed=5)[0, : len(module.norm.weight)] + 2)
    x, upstream = rows(batch.rows), rows(batch.rows, seed=1)
    found_x, naive_x = (x.clone().requires_grad_() for _ in range(2))
    leaves = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    out, wanted = module(found_x, batch), naive(naive_x, leaves, batch, config)
    (out * upstream).sum().backward()
    (wanted * upstream).sum().backward()
    pairs = {"out": (out, wanted), "x": (found_x.grad, naive_x.grad)}
    for name, parameter in module.named_parameters():
        pairs[name] = (parameter.grad, leaves[name].grad)
    errors = {name: distance(ours, theirs) for name, (ours, theirs) in pairs.items()}
    assert len(errors) == 7
    assert max(errors.values()) <= 1e-10, errors


def test_padding_gets_zero_and_gives_none(alone: ContextParallelGroup) -> None:
    batch = rank_batch(random_sequences(), alone, tail_rows=8)
    x = rows(batch.rows).requires_grad_()
    out = latent_attention(MOONLIGHT)(x, batch)
    out.square().sum().backward()
    assert 0 < int(batch.real.sum()) < batch.rows
    assert x.grad is not None
    for tensor in (out, x.grad):
        assert not tensor[~batch.real].any()
        assert tensor[batch.real].any(dim=-1).all()


def test_heads_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(InputError, match="tensor parallel size: 2 does not divide 3 heads"):
        latent_attention(UNEQUAL, size=2)


def test_a_model_without_it_is_refused() -> None:
    with pytest.raises(InputError, match="latent"):
        latent_attention(preset("qwen3-tiny"))
