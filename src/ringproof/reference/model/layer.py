"""A layer: a mixer, a feed-forward, or both, each behind a norm and beside a residual; and MTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ringproof.reference.model.attention import Attention
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import LayerKind, ModelConfig
from ringproof.reference.model.feed_forward import FeedForward
from ringproof.reference.model.linear import ReplicatedLinear
from ringproof.reference.model.mla import LatentAttention
from ringproof.reference.model.moe import MixtureOfExperts
from ringproof.reference.model.norm import RMSNorm
from ringproof.reference.model.parameters import Builder

# Attribute of each part, with which the names of its parameters begin, and how it is made.
PARTS: Mapping[str, tuple[str, Callable[[ModelConfig, Builder], nn.Module]]] = MappingProxyType(
    {
        "attention": ("attention", Attention),
        "latent": ("attention", LatentAttention),
        "swiglu": ("feed_forward", FeedForward),
        "experts": ("moe", MixtureOfExperts),
    }
)


class Layer(nn.Module):
    """``x + mixer(norm(x))``, then ``x + feed_forward(norm(x))``; either may be absent.

    Raises:
        InputError: The model lacks a shape, or TP cannot divide one.
    """

    recomputes = False
    """Whether it runs its forward again by itself, as a layer does that a graph replays."""

    def __init__(self, config: ModelConfig, builder: Builder, kind: LayerKind) -> None:
        super().__init__()
        self.kind = kind
        for part in (kind.mixer, kind.feed_forward):
            if part is not None:
                name, make = PARTS[part]
                norm = RMSNorm(builder.scope(f"{name}_norm"), config.hidden, config.norm_epsilon)
                self.add_module(f"{name}_norm", norm)
                self.add_module(name, make(config, builder.scope(name)))

    def forward(
        self, x: torch.Tensor, batch: PackedBatch
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Map the residual stream ``[r or R, h]`` to the same shape.

        Returns:
            The residual stream, and this rank's additive share of the auxiliary loss of a mixture
            of experts (0-dim, with its gradient), or ``None``.
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
        """Return the result of a part: a tensor, or two of a mixture of experts."""
        name, _ = PARTS[part]
        return self.get_submodule(name)(self.get_submodule(f"{name}_norm")(x), batch)


class PredictionModule(nn.Module):
    """One depth of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2).

    Depth ``d`` predicts the token ``1 + d`` places ahead. Its input at row ``i`` is the state of
    the depth before it and the embedding of token ``i + d``; embedding and head are the model's
    own. States are taken behind the last norm, as in Megatron-LM's ``MultiTokenPredictionLayer``.

    Token ``i + d`` may be in another chunk, on another rank or in another CP group: the owner of
    the data has shifted tokens inside each sequence (``PackedBatch.future``) before they were
    divided. Past a sequence's end the embedding is zero and the row has no label. Attention is
    causal, so no row with a label sees such a row.
    """

    def __init__(self, config: ModelConfig, builder: Builder) -> None:
        super().__init__()
        width, epsilon = config.hidden, config.norm_epsilon
        self.state_norm = RMSNorm(builder.scope("state_norm"), width, epsilon)
        self.embedding_norm = RMSNorm(builder.scope("embedding_norm"), width, epsilon)
        self.projection = ReplicatedLinear(builder.scope("projection"), 2 * width, width)
        self.layer = Layer(config, builder.scope("layer"), config.mtp_layer)
        self.norm = RMSNorm(builder.scope("norm"), width, epsilon)

    def forward(
        self, state: torch.Tensor, ahead: torch.Tensor, batch: PackedBatch
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the state of this depth, and its layer's auxiliary loss.

        Args:
            state: ``[r or R, h]``, the normed state of the depth before, or of the model.
            ahead: ``[r or R, h]``, embeddings of the tokens ahead.
            batch: The microbatch.
        """
        both = torch.cat((self.state_norm(state), self.embedding_norm(ahead)), dim=-1)
        x, auxiliary = self.layer(self.projection(both), batch)
        return self.norm(x), auxiliary
