"""Grouped-query attention (GQA) over a packed microbatch, under TP and CP together.

TP cuts the heads, CP cuts the rows. Everything that says how the rows are cut comes with the
microbatch: its group, its communication type, its pack, its positions. The module keeps none.

Letters: ``R`` local rows, ``r`` of them under sequence parallelism, ``h`` hidden width, ``H`` query
heads and ``G`` key/value heads of this TP rank, ``D`` head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from ringproof.errors import InputError
from ringproof.reference.attention.attention import AttentionOptions, planned_attention
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig, required
from ringproof.reference.model.linear import ColumnLinear, RowLinear
from ringproof.reference.model.norm import RMSNorm
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.rope import rotate, rotation
from ringproof.reference.model.tensor_parallel import enter, leave


class Attention(nn.Module):
    """GQA with optional q/k norm and RoPE.

    Args:
        config: Has an ``attention`` shape.
        builder: Scoped to this module.

    Raises:
        InputError: The model has no such shape, or TP does not divide its key/value heads.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        shape = required(config.attention, "attention")
        self.tensor_parallel = builder.tensor_parallel
        self.head_width, self.rotary_base = shape.head_width, config.rotary_base
        self.rotary, self.normalise = shape.rotary, shape.normalise
        self.heads = _share(shape.heads, self.tensor_parallel.size)
        self.kv_heads = _share(shape.kv_heads, self.tensor_parallel.size)
        width, kv_width = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        blocks = (width, kv_width, kv_width)
        self.qkv = ColumnLinear(builder.scope("qkv"), config.hidden, sum(blocks), blocks)
        self.out = RowLinear(builder.scope("out"), width, config.hidden)
        if self.normalise:
            # A q/k norm sees this rank's heads, so its gradient is partial with or without SP.
            for name in ("q_norm", "k_norm"):
                norm = RMSNorm(
                    builder.scope(name), self.head_width, config.norm_epsilon, over_heads=True
                )
                self.add_module(name, norm)

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        """``[r or R, h]`` to the same; rows of padding get zero."""
        tp = self.tensor_parallel
        q, k, v = self._heads(self.qkv(enter(x, tp)))
        if self.normalise:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rotary:
            angles = rotation(batch.positions, self.head_width, self.rotary_base, x.dtype)
            q, k = rotate(q, *angles), rotate(k, *angles)
        return leave(self.out(attend(q, k, v, batch).flatten(1)), tp)

    def _heads(self, qkv: torch.Tensor) -> Sequence[torch.Tensor]:
        """``[R, (H + 2 G) D]`` to q ``[R, H, D]``, k and v ``[R, G, D]``."""
        heads = qkv.unflatten(-1, (-1, self.head_width))
        return heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: PackedBatch,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """Causal attention inside the sequences of a microbatch, over the CP group that shares it.

    A group of one rank takes the same way. Where the ranks that exchange heads (all of them for
    ``a2a``, level 0 for ``a2a+p2p``) are more than the key/value heads, or not a divisor of them,
    each key/value head is copied as often as it takes: see :func:`kv_replication`.

    Args:
        q: ``[R, H, D]``.
        k: ``[R, G, D]``.
        v: ``[R, G, V]``.
        batch: The microbatch.
        scale: Softmax scale; ``D ** -0.5`` when ``None``.

    Returns:
        ``[R, H, V]``.

    Raises:
        InputError: The ranks that exchange heads do not divide the query heads.
    """
    plan = batch.attention_plan
    replication = kv_replication(k.shape[1], plan.exchange_size)
    options = AttentionOptions(scale=scale, kv_replication=replication)
    out, _ = planned_attention(q, k, v, plan, options)
    return out


def kv_replication(kv_heads: int, exchanging: int) -> int:
    """The least number of copies of each key/value head that the exchanging ranks divide.

    >>> kv_replication(4, 2), kv_replication(2, 4), kv_replication(4, 8), kv_replication(2, 3)
    (1, 2, 2, 3)
    """
    return math.lcm(kv_heads, exchanging) // kv_heads


def _share(heads: int, size: int) -> int:
    """Heads of one TP rank."""
    if heads % size:
        raise InputError(
            "tensor parallel size", size, f"does not divide {heads} heads", "use a smaller one"
        )
    return heads // size
