"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): one module per depth.

Depth ``d`` predicts the token ``1 + d`` places ahead. Its input at row ``i`` is the state of the
depth before it and the embedding of token ``i + d``; embedding and head are the model's own. So the
causal chain is kept: depth 2 continues from depth 1, which continues from the model. States are
taken behind the last norm, as Megatron-LM's ``MultiTokenPredictionLayer`` does.

Where token ``i + d`` is in another chunk, another rank or another CP group makes no difference: the
owner of the data has shifted tokens inside each sequence (``PackedBatch.future``) before they were
cut. Past a sequence's end there is none: the embedding is zero and the row has no label. Attention
is causal, so such a row is seen by none that has.
"""

from __future__ import annotations

import torch
from torch import nn

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig
from ringproof.reference.model.layer import Layer
from ringproof.reference.model.linear import ReplicatedLinear
from ringproof.reference.model.norm import RMSNorm
from ringproof.reference.model.parameters import Builder


class PredictionModule(nn.Module):
    """One depth: two norms, a projection ``[2 h] -> [h]``, a layer, a norm.

    Args:
        config: The model; its :attr:`~ModelConfig.mtp_layer` says what the layer is made of.
        builder: Scoped to this module.
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
        """The state of this depth, for head and next depth, and its layer's auxiliary loss.

        Args:
            state: ``[r or R, h]``, normed: of the depth before, or of the model.
            ahead: ``[r or R, h]``, embeddings of the tokens ahead.
            batch: The microbatch.
        """
        both = torch.cat((self.state_norm(state), self.embedding_norm(ahead)), dim=-1)
        x, auxiliary = self.layer(self.projection(both), batch)
        return self.norm(x), auxiliary
