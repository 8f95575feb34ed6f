"""A pipeline stage: consecutive layers, with the embedding before the first and the loss after the
last.

Parameters have the names of the whole model: layers are keyed by their global index. The divisor of
every loss comes with the microbatch and covers the whole global batch, so that shares add up, over
microbatches, ranks and stages, to one number that does not depend on the packing:

    next token     sum of cross-entropy / predictions[0]
    further ones   weight / depths * sum over depths d of (sum of cross-entropy / predictions[d])
    balance        see ``moe``
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ringproof.errors import InputError, shown
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig
from ringproof.reference.model.layer import Layer, PredictionModule
from ringproof.reference.model.norm import RMSNorm
from ringproof.reference.model.parameters import Builder, ParameterKind
from ringproof.reference.model.tensor_parallel import TensorParallel, all_reduce
from ringproof.reference.model.vocabulary import VocabularyMatrix, cross_entropy_sum


@dataclass(frozen=True)
class StageOutput:
    """Result of a stage for a microbatch.

    Args:
        value: Hidden state ``[r or R, h]`` for the next stage; of the last stage, this rank's share
            of the loss (0-dim). Its backward includes the auxiliary losses.
        losses: Detached shares of this stage by name (``lm``, ``mtp``, ``moe_auxiliary``), equal on
            TP ranks. The sum over the domain, the stages and the microbatches is the loss.
    """

    value: torch.Tensor
    losses: Mapping[str, torch.Tensor]


class Stage(nn.Module):
    """Consecutive layers of a model, whose parameters are the same numbers in any layout.

    Args:
        layers: Indices of the layers in the whole model.
        first: Whether it embeds tokens.
        last: Whether it computes the loss.
        seed, dtype, device, tensor_parallel: See :class:`Builder`.
        recompute: Whether each layer runs its forward again in the backward.

    Raises:
        InputError: TP cannot divide the model.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        layers: range,
        first: bool,
        last: bool,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        tensor_parallel: TensorParallel,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        builder = Builder(seed, dtype, device, tensor_parallel, registry={})
        self.config, self.tensor_parallel = config, tensor_parallel
        self.first, self.last, self.recompute = first, last, recompute
        again = config.tied or config.mtp_depths > 0  # the last stage needs the embedding, too
        if first or (last and again):
            self.embedding = VocabularyMatrix(
                builder.scope("embedding"),
                config.vocabulary,
                config.hidden,
                shared=again and not (first and last),
            )
        scope = builder.scope("layers")
        self.layers = nn.ModuleDict(
            {str(i): Layer(config, scope.scope(str(i)), config.layers[i]) for i in layers}
        )
        if last:
            self._make_output(builder)
        self.kinds: Mapping[str, ParameterKind] = MappingProxyType(builder.registry)

    def _make_output(self, builder: Builder) -> None:
        config = self.config
        self.norm = RMSNorm(builder.scope("norm"), config.hidden, config.norm_epsilon)
        if not config.tied:
            self.head = VocabularyMatrix(builder.scope("head"), config.vocabulary, config.hidden)
        scope = builder.scope("mtp")
        depths = range(1, config.mtp_depths + 1)
        self.mtp = nn.ModuleDict(
            {str(depth): PredictionModule(config, scope.scope(str(depth))) for depth in depths}
        )

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> StageOutput:
        """Compute one microbatch.

        ``x`` is ``batch.tokens`` on the first stage, and the value of the stage before on others.

        Raises:
            InputError: The last stage gets no labels, or fewer depths than it predicts.
        """
        if self.first:
            x = self.embedding.embed(x)
        balance: list[torch.Tensor] = []
        for layer in self.layers.values():
            x = self._run(layer, balance, x, batch)
        losses = self._losses(x, batch, balance) if self.last else {}
        if balance:
            share = torch.stack(balance).sum()
            if self.tensor_parallel.rows_are_cut:
                share = all_reduce(share, self.tensor_parallel)
            losses["moe_auxiliary"] = share
        value = torch.stack(tuple(losses.values())).sum() if self.last else x
        return StageOutput(value, {name: loss.detach() for name, loss in losses.items()})

    def _run(
        self, module: nn.Module, balance: list[torch.Tensor], *arguments: object
    ) -> torch.Tensor:
        """Run a layer or a prediction module, and attach its auxiliary loss to the result."""
        again = self.recompute and not getattr(module, "recomputes", False)
        if again and torch.is_grad_enabled():
            x, auxiliary = checkpoint(
                module, *arguments, use_reentrant=False, preserve_rng_state=False
            )
        else:
            x, auxiliary = module(*arguments)
        if auxiliary is None:
            return x
        balance.append(auxiliary.detach())
        return _Attach.apply(x, auxiliary)

    def _losses(
        self, x: torch.Tensor, batch: PackedBatch, balance: list[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the loss of the next token, then of one token further at each depth."""
        config = self.config
        future = _labels(batch, 1 + config.mtp_depths)
        x = self.norm(x)
        losses = {"lm": self._mean(x, batch, depth=0)}
        further = []
        for depth, module in enumerate(self.mtp.values(), start=1):
            ahead = self.embedding.embed(future[depth - 1])
            x = self._run(module, balance, x, ahead, batch)
            further.append(self._mean(x, batch, depth=depth))
        if further:
            losses["mtp"] = torch.stack(further).sum() * (config.mtp_weight / len(further))
        return losses

    def _mean(self, x: torch.Tensor, batch: PackedBatch, *, depth: int) -> torch.Tensor:
        """Return this rank's share of the mean cross-entropy over the global batch."""
        head = self.embedding if self.config.tied else self.head
        labels = _labels(batch, 1 + depth)[depth]
        total = cross_entropy_sum(head.logits(x), labels, self.tensor_parallel)
        if batch.metadata is None:
            return total / max(1, batch.totals.predictions[depth])
        return total / batch.metadata.predictions[depth].clamp(min=1)


class _Attach(torch.autograd.Function):
    """Return ``x``; in the backward, the auxiliary loss gets the gradient 1 of a loss.

    So a stage does not have to send its auxiliary loss to the last stage.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, auxiliary: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.ones_like(auxiliary))
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (one,) = ctx.saved_tensors
        return gradient, one


def split_layers(layer_count: int, stages: int) -> tuple[range, ...]:
    """Return the layers of each stage, divided evenly and in order, the longer stages first.

    Under interleaving there are ``PP x VPP`` stages, and stage ``c`` is on pipeline rank
    ``c % PP``.

    Raises:
        InputError: There is no stage, or there are more stages than layers.

    >>> split_layers(5, 2)
    (range(0, 3), range(3, 5))
    """
    if not 1 <= stages <= layer_count:
        problem = f"{stages} stages cannot share {layer_count} layers"
        raise InputError("pipeline stages", f"{problem}; give each stage a layer")
    length, longer = divmod(layer_count, stages)
    starts = [stage * length + min(stage, longer) for stage in range(stages + 1)]
    return tuple(range(start, stop) for start, stop in itertools.pairwise(starts))


def _labels(batch: PackedBatch, depths: int) -> torch.Tensor:
    """Return ``future [>= depths, R]``."""
    counts = batch.metadata.predictions if batch.metadata else batch.totals.predictions
    if batch.future is None or min(len(batch.future), len(counts)) < depths:
        found = None if batch.future is None else tuple(batch.future.shape)
        problem = f"{shown(found)} is not the shape of labels at {depths} depths"
        raise InputError("future", f"{problem}, as the model predicts; give them")
    return batch.future
