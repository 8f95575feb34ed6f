"""The models again, plainly: one sequence at a time, no pack, no groups, no code of the reference.

Weights are read by name from a stage; everything else is written down a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

from ringproof.reference.model.config import LayerKind, ModelConfig

Weights = Mapping[str, torch.Tensor]


def dense_loss(
    config: ModelConfig, weights: Weights, sequences: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Mean cross-entropy of the next token, and the weighted mean of those further ahead."""
    depths = config.mtp_depths
    sums = [weights["embedding.weight"].new_zeros(()) for _ in range(depths + 1)]
    for tokens in sequences:
        for depth, term in enumerate(sequence_losses(config, weights, torch.tensor(tokens))):
            sums[depth] = sums[depth] + term
    counts = [sum(max(0, len(t) - 1 - depth) for t in sequences) for depth in range(depths + 1)]
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    further = config.mtp_weight * sum(means[1:]) / depths if depths else 0.0
    return means[0] + further


def sequence_losses(
    config: ModelConfig, weights: Weights, tokens: torch.Tensor
) -> list[torch.Tensor]:
    """Sums over one sequence, by depth."""
    embedding = weights["embedding.weight"]
    head = embedding if config.tied else weights["head.weight"]
    x = embedding[tokens]
    for index, kind in enumerate(config.layers):
        x = layer(config, kind, weights, f"layers.{index}", x)
    x = norm(x, weights["norm.weight"])
    losses = [cross_entropy(x, head, tokens[1:])]
    for depth in range(1, config.mtp_depths + 1):
        # Rows that have a token so far ahead; the others cannot matter, so they are left out.
        rows = max(0, len(tokens) - depth)
        name = f"mtp.{depth}"
        state = norm(x[:rows], weights[f"{name}.state_norm.weight"])
        ahead = norm(embedding[tokens[depth:]], weights[f"{name}.embedding_norm.weight"])
        x = torch.cat((state, ahead), -1) @ weights[f"{name}.projection.weight"].T
        x = layer(config, config.mtp_layer, weights, f"{name}.layer", x)
        x = norm(x, weights[f"{name}.norm.weight"])
        losses.append(cross_entropy(x, head, tokens[1 + depth :]))
    return losses


def cross_entropy(x: torch.Tensor, head: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(x[: len(labels)] @ head.T, labels, reduction="sum")


def layer(
    config: ModelConfig, kind: LayerKind, weights: Weights, name: str, x: torch.Tensor
) -> torch.Tensor:
    if not len(x):
        return x
    if kind.mixer:
        normed = norm(x, weights[f"{name}.attention_norm.weight"])
        x = x + attention(config, weights, f"{name}.attention", normed)
    if kind.feed_forward:
        normed = norm(x, weights[f"{name}.feed_forward_norm.weight"])
        up = normed @ weights[f"{name}.feed_forward.up.weight"].T
        gate, value = up.chunk(2, -1)
        up = gate * torch.sigmoid(gate) * value
        x = x + up @ weights[f"{name}.feed_forward.down.weight"].T
    return x


def attention(config: ModelConfig, weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    shape = config.attention
    assert shape is not None
    width = shape.head_width
    counts = (shape.heads * width, shape.kv_heads * width, shape.kv_heads * width)
    q, k, v = (
        part.view(len(x), -1, width).transpose(0, 1)
        for part in (x @ weights[f"{name}.qkv.weight"].T).split(counts, -1)
    )
    if shape.normalise:
        q = norm(q, weights[f"{name}.q_norm.weight"])
        k = norm(k, weights[f"{name}.k_norm.weight"])
    q, k = turn(q, config.rotary_base), turn(k, config.rotary_base)
    copies = shape.heads // shape.kv_heads
    k, v = (kv.repeat_interleave(copies, 0) for kv in (k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(0, 1).flatten(1) @ weights[f"{name}.out.weight"].T


def turn(x: torch.Tensor, base: float, first: int = 0) -> torch.Tensor:
    """Rotary embedding of ``[..., L, D]`` from a position on, as a product of complex numbers."""
    half = x.shape[-1] // 2
    numbers = torch.complex(x[..., :half], x[..., half:])
    positions = first + torch.arange(x.shape[-2] if x.dim() > 1 else 1, dtype=x.dtype)
    speeds = torch.tensor([base ** (-2 * j / x.shape[-1]) for j in range(half)], dtype=x.dtype)
    angles = torch.outer(positions, speeds)
    turned = numbers * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1).view(x.shape)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight
