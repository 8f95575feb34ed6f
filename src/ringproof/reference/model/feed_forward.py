"""Dense feed-forwards: SwiGLU (arXiv 2002.05202) and squared ReLU (arXiv 2109.08668).

``SwiGLU(x) = (silu(x A) * x B) C``; ``squared ReLU(x) = relu(x A)^2 C``. TP cuts the hidden width.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import relu, silu

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig
from ringproof.reference.model.linear import ColumnLinear, RowLinear
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.tensor_parallel import enter, leave


class FeedForward(nn.Module):
    """One of the two, on each row by itself.

    Args:
        config: The model.
        builder: Scoped to this module.
        kind: ``swiglu`` or ``squared-relu``.
    """

    def __init__(self, config: ModelConfig, builder: Builder, kind: str) -> None:
        super().__init__()
        self.gated, self.tensor_parallel = kind == "swiglu", builder.tensor_parallel
        blocks = (config.feed_forward,) * (2 if self.gated else 1)
        self.up = ColumnLinear(builder.scope("up"), config.hidden, sum(blocks), blocks)
        self.down = RowLinear(builder.scope("down"), config.feed_forward, config.hidden)

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        """``[r or R, h]`` to the same."""
        up = self.up(enter(x, self.tensor_parallel))
        return leave(
            self.down(swiglu(up) if self.gated else relu(up).square()), self.tensor_parallel
        )


def swiglu(gate_and_value: torch.Tensor) -> torch.Tensor:
    """``[R, 2 F]``, gate beside value, to ``[R, F]``."""
    gate, value = gate_and_value.chunk(2, dim=-1)
    return silu(gate) * value
