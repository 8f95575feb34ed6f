"""The dense feed-forward, SwiGLU (arXiv 2002.05202): ``(silu(x A) * x B) C``.

TP divides the hidden width.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import silu

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig
from ringproof.reference.model.linear import ColumnLinear, RowLinear
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.tensor_parallel import copy_to_region, reduce_from_region


class FeedForward(nn.Module):
    """SwiGLU, which acts on each row by itself."""

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        self.tensor_parallel = builder.tensor_parallel
        blocks = (config.feed_forward,) * 2
        self.up = ColumnLinear(builder.scope("up"), config.hidden, sum(blocks), blocks)
        self.down = RowLinear(builder.scope("down"), config.feed_forward, config.hidden)

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        """Map rows ``[r or R, h]`` to the same shape."""
        up = self.up(copy_to_region(x, self.tensor_parallel))
        return reduce_from_region(self.down(swiglu(up)), self.tensor_parallel)


def swiglu(gate_and_value: torch.Tensor) -> torch.Tensor:
    """Map ``[R, 2 F]``, gate beside value, to ``[R, F]``."""
    gate, value = gate_and_value.chunk(2, dim=-1)
    return silu(gate) * value
