"""One layer: a mixer, a feed-forward, or both, each behind a norm and beside a residual."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ringproof.reference.model.attention import Attention
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import LayerKind, ModelConfig
from ringproof.reference.model.feed_forward import FeedForward
from ringproof.reference.model.mamba import Mamba
from ringproof.reference.model.mla import LatentAttention
from ringproof.reference.model.moe import MixtureOfExperts
from ringproof.reference.model.norm import RMSNorm
from ringproof.reference.model.parameters import Builder

# Under which name a layer holds a part, and so what its parameters are called.
NAMES = MappingProxyType(
    {
        "attention": "attention",
        "latent": "attention",
        "mamba": "mamba",
        "swiglu": "feed_forward",
        "squared-relu": "feed_forward",
        "experts": "moe",
    }
)


class Layer(nn.Module):
    """``x + mixer(norm(x))``, then ``x + feed_forward(norm(x))``; either may be absent.

    Args:
        config: The model.
        builder: Scoped to this layer.
        kind: What it is made of.

    Raises:
        InputError: The model lacks a shape, or TP cannot cut one.
    """

    recomputes = False
    """Whether it sees to its own recomputation, as one does that a graph replays."""

    def __init__(self, config: ModelConfig, builder: Builder, kind: LayerKind) -> None:
        super().__init__()
        self.kind = kind
        for part in (kind.mixer, kind.feed_forward):
            if part is not None:
                name = NAMES[part]
                norm = RMSNorm(builder.scope(f"{name}_norm"), config.hidden, config.norm_epsilon)
                self.add_module(f"{name}_norm", norm)
                self.add_module(name, _make(part, config, builder.scope(name)))

    def forward(
        self, x: torch.Tensor, batch: PackedBatch
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``[r or R, h]`` to the same, and the auxiliary loss of a mixture of experts.

        Returns:
            The residual stream, and this rank's additive share of the auxiliary loss (0-dim, with
            its gradient), or ``None`` where the layer has none.
        """
        auxiliary = None
        if self.kind.mixer is not None:
            x = x + self._behind_norm(self.kind.mixer, x, batch)
        if self.kind.feed_forward == "experts":
            out, auxiliary = self._behind_norm("experts", x, batch)
            x = x + out
        elif self.kind.feed_forward is not None:
            x = x + self._behind_norm(self.kind.feed_forward, x, batch)
        return x, auxiliary

    def _behind_norm(self, part: str, x: torch.Tensor, batch: PackedBatch) -> Any:
        """What a part makes of normed rows: a tensor; two of a mixture of experts."""
        name = NAMES[part]
        return self.get_submodule(name)(self.get_submodule(f"{name}_norm")(x), batch)


def _make(part: str, config: ModelConfig, builder: Builder) -> nn.Module:
    match part:
        case "attention":
            return Attention(config, builder)
        case "latent":
            return LatentAttention(config, builder)
        case "mamba":
            return Mamba(config, builder)
        case "experts":
            return MixtureOfExperts(config, builder)
        case _:
            return FeedForward(config, builder, part)
