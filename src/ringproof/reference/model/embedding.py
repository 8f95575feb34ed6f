"""Token embedding and output head, their vocabulary cut over TP.

They may be one matrix. The rank that holds a token's row looks it up, the others add zero.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.tensor_parallel import TensorParallel, enter, leave


class VocabularyMatrix(nn.Module):
    """``weight [V / TP, h]``, of an embedding, of a head, or of both.

    Args:
        builder: Scoped to this module.
        vocabulary: ``V``.
        width: ``h``.
        shared: It also lives on another pipeline stage.
    """

    def __init__(
        self, builder: Builder, vocabulary: int, width: int, *, shared: bool = False
    ) -> None:
        super().__init__()
        self.tensor_parallel = builder.tensor_parallel
        self.weight = builder.parameter("weight", (vocabulary, width), split=0, shared=shared)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """``[R]`` to ``[r or R, h]``. A negative token is embedded as 0."""
        return leave(_own_rows(tokens, self.weight, self.tensor_parallel), self.tensor_parallel)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """``[r or R, h]`` to ``[R, V / TP]``."""
        return linear(enter(x, self.tensor_parallel), self.weight)


def _own_rows(tokens: torch.Tensor, weight: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Rows of the tokens whose weights are here, zero for the others."""
    rows = weight.shape[0]
    local = tokens - tp.rank * rows
    own = (local >= 0) & (local < rows)
    found = embedding(local.clamp(0, rows - 1), weight)
    return found * own.unsqueeze(-1)
