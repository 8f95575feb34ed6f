"""Embedding, output head and cross-entropy, with the vocabulary divided over TP ranks.

Embedding and head may be one matrix. The rank that holds a token's row looks it up, the others add
zero. For the loss of a row three numbers move and no logits: with ``m`` the largest logit over all
ranks and ``Z = sum_v exp(l_v - m)``, the loss with label ``y`` is ``log Z + m - l_y``, and its
gradient is ``softmax(l) - onehot(y)``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, linear

from ringproof.reference.model.batch import IGNORED
from ringproof.reference.model.parameters import Builder
from ringproof.reference.model.tensor_parallel import (
    TensorParallel,
    all_reduce,
    copy_to_region,
    reduce_from_region,
)


class VocabularyMatrix(nn.Module):
    """``weight [V / TP, h]`` of an embedding, of a head, or of both.

    With ``shared``, it also exists on another pipeline stage.
    """

    def __init__(
        self, builder: Builder, vocabulary: int, width: int, *, shared: bool = False
    ) -> None:
        super().__init__()
        self.tensor_parallel = builder.tensor_parallel
        self.weight = builder.parameter("weight", (vocabulary, width), split=0, shared=shared)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens ``[R]`` to ``[r or R, h]``. A negative token is embedded as 0."""
        rows = self.weight.shape[0]
        local = tokens - self.tensor_parallel.rank * rows
        own = (local >= 0) & (local < rows)
        found = embedding(local.clamp(0, rows - 1), self.weight)
        return reduce_from_region(found * own.unsqueeze(-1), self.tensor_parallel)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Map rows ``[r or R, h]`` to ``[R, V / TP]``."""
        return linear(copy_to_region(x, self.tensor_parallel), self.weight)


def cross_entropy_sum(
    logits: torch.Tensor, labels: torch.Tensor, tp: TensorParallel
) -> torch.Tensor:
    """Sum the cross-entropy over the rows that have a label.

    Every TP rank gets the same number and the gradient of its own columns.

    Args:
        logits: ``[R, V / TP]``, the columns of this rank: rank ``i`` holds the ``i``-th part.
        labels: ``[R]`` int64 in the whole vocabulary, or :data:`IGNORED`.

    Returns:
        A 0-dim tensor, in float32 at least.
    """
    return _CrossEntropySum.apply(logits, labels, tp)


class _CrossEntropySum(torch.autograd.Function):
    """Row statistics all-reduced forward, nothing moves backward."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, tp: TensorParallel
    ) -> torch.Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        wide = wide - all_reduce(wide.amax(-1), tp, dist.ReduceOp.MAX).unsqueeze(-1)
        columns = wide.shape[-1]
        local = labels - tp.rank * columns
        own = (local >= 0) & (local < columns)  # false for IGNORED, which is negative
        column = local.clamp(0, columns - 1).unsqueeze(-1)
        predicted = wide.gather(-1, column).squeeze(-1).where(own, wide.new_zeros(()))
        exponentials = wide.exp()
        partition, predicted = all_reduce(torch.stack((exponentials.sum(-1), predicted)), tp)
        labelled = labels != IGNORED
        ctx.save_for_backward(exponentials / partition.unsqueeze(-1), column, own, labelled)
        ctx.dtype = logits.dtype
        return (partition.log() - predicted).where(labelled, wide.new_zeros(())).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        probabilities, column, own, labelled = ctx.saved_tensors
        hit = own.unsqueeze(-1).to(probabilities.dtype)
        rows = probabilities.scatter_add(-1, column, -hit) * labelled.unsqueeze(-1)
        return (rows * gradient).to(ctx.dtype), None, None
