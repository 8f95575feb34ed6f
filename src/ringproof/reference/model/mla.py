"""Multi-head latent attention (MLA, arXiv 2405.04434) with decoupled RoPE.

Keys and values come from one narrow latent vector per row. A few extra channels have the position;
all heads share their key. Queries are not compressed, as in Moonlight.

Letters: ``R`` rows, ``r`` of them under sequence parallelism, ``h`` hidden width, ``H`` heads of
this TP rank, ``c`` and ``p`` widths of queries and keys without and with position, ``V`` of values,
``l`` of the latent.

==========  ===============================================  ===================================
x           copy_to_region, ``query``                        ``[R, H, c + p]``: q, ``p`` rotated
x           ``latent``                                       ``[r, l]`` and ``[r, p]``
``[r, l]``  norm, copy_to_region, ``expand``                 ``[R, H, c]`` of k, ``[R, H, V]``: v
``[r, p]``  copy_to_region, rotate, the same for all heads   ``[R, H, p]`` of k
==========  ===============================================  ===================================

The projection to the latent is replicated over TP and comes before its rows are gathered. So its
gradient is complete unless sequence parallelism divides the rows. After the gathering it would
always be partial, since each rank has the gradient of its own heads alone.
"""

from __future__ import annotations

import torch
from torch import nn

from ringproof.reference.model.attention import attend, heads_per_rank, rotate, rotation
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig, required
from ringproof.reference.model.linear import ColumnLinear, ReplicatedLinear, RowLinear
from ringproof.reference.model.norm import RMSNorm
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.tensor_parallel import copy_to_region, reduce_from_region


class LatentAttention(nn.Module):
    """MLA over the CP group of a microbatch, with the heads divided over TP.

    Raises:
        InputError: The model has no latent attention, or TP does not divide its heads.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        shape, tp = required(config.latent, "latent"), builder.tensor_parallel
        self.shape = shape
        self.heads = heads_per_rank(shape.heads, tp.size)
        self.rotary_base = config.rotary_base
        self.tensor_parallel = tp
        hidden = config.hidden
        query_width = shape.content_width + shape.rotary_width
        self.query = ColumnLinear(builder.scope("query"), hidden, shape.heads * query_width)
        self.latent = ReplicatedLinear(
            builder.scope("latent"), hidden, shape.latent_width + shape.rotary_width
        )
        self.norm = RMSNorm(builder.scope("norm"), shape.latent_width, config.norm_epsilon)
        self.expand = ColumnLinear(
            builder.scope("expand"),
            shape.latent_width,
            shape.heads * (shape.content_width + shape.value_width),
        )
        self.out = RowLinear(builder.scope("out"), shape.heads * shape.value_width, hidden)

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        """Map rows ``[r or R, h]`` to the same shape; rows of padding get zero."""
        rotary = rotation(batch.positions, self.shape.rotary_width, self.rotary_base, x.dtype)
        queries, (keys, values) = self._queries(x, rotary), self._keys_and_values(x, rotary)
        scale = queries.shape[-1] ** -0.5  # the width of queries and keys, not of the values
        mixed = attend(queries, keys, values, batch, scale=scale)
        return reduce_from_region(self.out(mixed.flatten(1)), self.tensor_parallel)

    def _queries(self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """``[R, H, c + p]``."""
        query = self.query(copy_to_region(x, self.tensor_parallel)).unflatten(1, (self.heads, -1))
        content, position = query.split((self.shape.content_width, self.shape.rotary_width), -1)
        return torch.cat((content, rotate(position, *rotary)), dim=-1)

    def _keys_and_values(
        self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[R, H, c + p]`` and ``[R, H, V]``."""
        shape = self.shape
        widths = (shape.latent_width, shape.rotary_width)
        latent, position = self.latent(x).split(widths, -1)
        both = copy_to_region(
            torch.cat((self.norm(latent), position), dim=-1), self.tensor_parallel
        )
        latent, position = both.split(widths, -1)
        expanded = self.expand(latent).unflatten(1, (self.heads, -1))
        content, value = expanded.split((shape.content_width, shape.value_width), -1)
        shared = rotate(position.unsqueeze(1), *rotary).expand(-1, self.heads, -1)
        return torch.cat((content, shared), dim=-1), value
