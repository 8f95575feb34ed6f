"""Grouped-query attention (GQA) and RoPE over a packed microbatch, under TP and CP together.

TP divides the heads, CP divides the rows. The group, communication type, pack and positions come
with the microbatch; no module stores them.

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
from ringproof.reference.model.tensor_parallel import copy_to_region, reduce_from_region


class Attention(nn.Module):
    """GQA with RoPE and optional q/k norm.

    Raises:
        InputError: The model has no such shape, or TP does not divide its key/value heads.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        shape = required(config.attention, "attention")
        self.tensor_parallel = builder.tensor_parallel
        self.head_width, self.rotary_base = shape.head_width, config.rotary_base
        self.normalise = shape.normalise
        self.heads = heads_per_rank(shape.heads, self.tensor_parallel.size)
        self.kv_heads = heads_per_rank(shape.kv_heads, self.tensor_parallel.size)
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
        """Map rows ``[r or R, h]`` to the same shape; rows of padding get zero."""
        tp = self.tensor_parallel
        q, k, v = self._heads(self.qkv(copy_to_region(x, tp)))
        if self.normalise:
            q, k = self.q_norm(q), self.k_norm(k)
        angles = rotation(batch.positions, self.head_width, self.rotary_base, x.dtype)
        q, k = rotate(q, *angles), rotate(k, *angles)
        return reduce_from_region(self.out(attend(q, k, v, batch).flatten(1)), tp)

    def _heads(self, qkv: torch.Tensor) -> Sequence[torch.Tensor]:
        """Split ``[R, (H + 2 G) D]`` into q ``[R, H, D]``, k and v ``[R, G, D]``."""
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
    """Compute causal attention inside the sequences of a microbatch, over its CP group.

    If the number of ranks that exchange heads (all of them for ``a2a``, level 0 for ``a2a+p2p``)
    does not divide the key/value heads, these are replicated: see :func:`kv_replication`.

    Args:
        q: ``[R, H, D]``.
        k: ``[R, G, D]``.
        v: ``[R, G, V]``.
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
    """Return the least number of copies of each key/value head that the exchanging ranks divide.

    >>> kv_replication(4, 2), kv_replication(2, 4), kv_replication(4, 8), kv_replication(2, 3)
    (1, 2, 2, 3)
    """
    return math.lcm(kv_heads, exchanging) // kv_heads


def heads_per_rank(heads: int, size: int) -> int:
    """Return the heads of one TP rank.

    Raises:
        InputError: The TP size does not divide them.
    """
    if heads % size:
        problem = f"{size} does not divide {heads} heads"
        raise InputError("tensor parallel size", f"{problem}; use a smaller one")
    return heads // size


def rotation(
    positions: torch.Tensor, width: int, base: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of every row's angles, two tensors ``[R, 1, width / 2]``.

    Rotary position embedding (arXiv 2104.09864) turns pair ``j`` of a head by ``position *
    base ** (-2 j / width)``. It depends on the position of a row ``[R]`` in its own sequence alone,
    wherever CP has put the row. Upstream computed positions from a CP group, and its Dynamic CP
    once silently used the static group. Angles are computed in float64 for float64, else in
    float32.
    """
    wide = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, width, 2, dtype=wide, device=positions.device) / width
    angles = positions.to(wide).unsqueeze(-1) * base**-exponents
    return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn each pair of channels of ``x [R, H, D]`` by its row's angle; see :func:`rotation`.

    Pair ``j`` is channels ``j`` and ``j + D / 2``.
    """
    left, right = x.to(cosine.dtype).chunk(2, dim=-1)
    turned = torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
    return turned.to(x.dtype)
