"""Multi-head latent attention (MLA, arXiv 2405.04434) with decoupled RoPE.

Keys and values come from one narrow latent vector per row; position is carried by a few extra
channels, whose key all heads share. Queries are not compressed, as in Moonlight.

Letters: ``R`` rows, ``r`` of them under sequence parallelism, ``h`` hidden width, ``H`` heads of
this TP rank, ``c`` and ``p`` widths of queries and keys without and with position, ``V`` of values,
``l`` of the latent.

==========  ======================================  ========================================
x           enter, ``query``                        ``[R, H, c + p]``: q, its ``p`` rotated
x           ``latent``                              ``[r, l]`` and ``[r, p]``
``[r, l]``  norm, enter, ``expand``                 ``[R, H, c]`` of k and ``[R, H, V]``: v
``[r, p]``  enter, rotate, the same for all heads   ``[R, H, p]`` of k
==========  ======================================  ========================================

The projection to the latent is replicated over TP and comes before its rows are gathered. So its
gradient is complete unless sequence parallelism cuts the rows. Behind the gathering it would always
be partial, since each rank sees the gradient of its own heads alone.
"""

from __future__ import annotations

import torch
from torch import nn

from ringproof.errors import InputError
from ringproof.reference.model.attention import attend
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig, required
from ringproof.reference.model.linear import ColumnLinear, ReplicatedLinear, RowLinear
from ringproof.reference.model.norm import RMSNorm
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.rope import rotate, rotation
from ringproof.reference.model.tensor_parallel import enter, leave


class LatentAttention(nn.Module):
    """MLA over the CP group that a microbatch came with, heads cut over TP.

    Args:
        config: The model; ``config.latent`` is the shape.
        builder: Scoped to this module.

    Raises:
        InputError: The model has no latent attention, or TP does not divide its heads.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        shape, tp = required(config.latent, "latent"), builder.tensor_parallel
        if shape.heads % tp.size:
            raise InputError(
                "tensor parallel size",
                tp.size,
                f"does not divide {shape.heads} heads",
                "use a smaller one",
            )
        self.shape = shape
        self.heads = shape.heads // tp.size
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
        """Attention within each sequence.

        Args:
            x: ``[r, h]`` (sequence parallelism) or ``[R, h]``.
            batch: Positions, sequences, and the CP group that shares them.

        Returns:
            The same shape; rows of padding are zero.
        """
        rotary = rotation(batch.positions, self.shape.rotary_width, self.rotary_base, x.dtype)
        queries, (keys, values) = self._queries(x, rotary), self._keys_and_values(x, rotary)
        # Of queries and keys; the width of the values has no say.
        scale = queries.shape[-1] ** -0.5
        mixed = attend(queries, keys, values, batch, scale=scale)
        return leave(self.out(mixed.flatten(1)), self.tensor_parallel)

    def _queries(self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """``[R, H, c + p]``."""
        query = self.query(enter(x, self.tensor_parallel)).unflatten(1, (self.heads, -1))
        content, position = query.split((self.shape.content_width, self.shape.rotary_width), -1)
        return torch.cat((content, rotate(position, *rotary)), dim=-1)

    def _keys_and_values(
        self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[R, H, c + p]`` and ``[R, H, V]``."""
        shape = self.shape
        widths = (shape.latent_width, shape.rotary_width)
        latent, position = self.latent(x).split(widths, -1)
        both = enter(torch.cat((self.norm(latent), position), dim=-1), self.tensor_parallel)
        latent, position = both.split(widths, -1)
        expanded = self.expand(latent).unflatten(1, (self.heads, -1))
        content, value = expanded.split((shape.content_width, shape.value_width), -1)
        shared = rotate(position.unsqueeze(1), *rotary).expand(-1, self.heads, -1)
        return torch.cat((content, shared), dim=-1), value
