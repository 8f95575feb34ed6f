"""What follows the microbatches of a step: sums over ranks, clipping, and AdamW.

All reductions are sums. The loss of a microbatch is already divided by counts of the whole global
batch, so a mean over ranks or microbatches would divide a second time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ringproof.reference.model.parameters import ParameterKind
from ringproof.reference.topology.catalogue import PlannedGroup
from ringproof.reference.topology.context import ParallelContext, created_groups
from ringproof.reference.topology.dynamic_catalogue import DOMAIN
from ringproof.reference.training.options import OptimiserOptions

TENSOR = "TENSOR_MODEL_PARALLEL_GROUP"
PIPELINE = "PIPELINE_MODEL_PARALLEL_GROUP"
REDUCED_OVER = (TENSOR, PIPELINE, DOMAIN)
"""Descriptions of the groups of the layout that a training uses."""
EMBEDDING_GROUP = "EMBEDDING_GROUP"
"""Upstream's ``group_desc`` of the stages that share the embedding (Megatron-LM core_v0.16.1)."""
BETAS = (0.9, 0.95)
EPSILON = 1e-8
FINAL_SHARE = 0.1
"""Share of the highest learning rate that is left at the end of the cosine."""


@dataclass(frozen=True)
class TrainedParameter:
    """One parameter of this rank, or its FSDP shard as a ``DTensor``.

    The name is that in the whole model, the same in every layout.
    """

    name: str
    kind: ParameterKind
    parameter: nn.Parameter

    @property
    def sharded(self) -> bool:
        """Whether each rank of the domain holds a shard, whose gradient FSDP has already summed."""
        return isinstance(self.parameter, DTensor)

    @property
    def gradient(self) -> torch.Tensor:
        """This rank's part of the gradient, as a plain tensor that can be written to.

        The gradient of a parameter that no microbatch used is zero.
        """
        if self.parameter.grad is None:
            self.parameter.grad = torch.zeros_like(self.parameter)
        return local_part(self.parameter.grad)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a ``DTensor`` without a copy, or any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def trained_parameters(stages: Iterable[nn.Module]) -> tuple[TrainedParameter, ...]:
    """List the parameters of a rank's stages, in order.

    Call it after sharding and before the first step. The ``kinds`` of a stage map the name of each
    parameter to its kind.
    """
    return tuple(
        TrainedParameter(name, stage.kinds[name], parameter)
        for stage in stages
        for name, parameter in stage.named_parameters()
    )


@dataclass(frozen=True)
class ReductionGroups:
    """Process groups over which sums are taken: TP, PP, and DP x CP ranks.

    ``embedding`` has the first and last pipeline rank; it is ``None`` on other stages and without a
    pipeline.
    """

    tensor: dist.ProcessGroup
    pipeline: dist.ProcessGroup
    domain: dist.ProcessGroup
    embedding: dist.ProcessGroup | None


@contextmanager
def reduction_groups(
    context: ParallelContext, *, timeout: timedelta | None = None
) -> Iterator[ReductionGroups]:
    """Create the embedding's group next to the context's groups, and destroy it on exit.

    A collective over the world. After an exception the group exists until the process ends.
    """
    layout = context.layout
    chains = layout.groups(("pp",)) if layout.pp > 1 else ()
    ends = [PlannedGroup(EMBEDDING_GROUP, (ranks[0], ranks[-1])) for ranks in chains]
    with created_groups(ends, timeout) as made:
        yield ReductionGroups(
            tensor=context.groups[TENSOR],
            pipeline=context.groups[PIPELINE],
            domain=context.groups[DOMAIN],
            embedding=next(iter(made.values()), None),
        )


def reduce_gradients(parameters: Sequence[TrainedParameter], groups: ReductionGroups) -> None:
    """Sum gradients in place, so that each is the gradient of the whole global batch.

    A collective over all groups. First, gradients of shared parameters are summed over the stages
    that hold them, then partial gradients over the tensor parallel ranks, then all gradients over
    the domain, except those that FSDP has already summed.

    The parameters have the same names in the same order on all ranks of a domain and of a tensor
    parallel group.
    """
    if groups.embedding is not None:
        shared = sorted((p for p in parameters if p.kind.shared), key=lambda p: p.name)
        sum_in_place([p.gradient for p in shared], groups.embedding)
    partial = [p.gradient for p in parameters if p.kind.partial_over_tensor_parallel]
    sum_in_place(partial, groups.tensor)
    sum_in_place([p.gradient for p in parameters if not p.sharded], groups.domain)


def sum_in_place(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Sum each tensor over a group in place, with one all-reduce for each dtype.

    The tensors have the same shapes and dtypes in the same order on every rank.
    """
    if group.size() == 1:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        dist.all_reduce(flat, group=group)
        for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.copy_(part.view_as(tensor))


def gradient_norm(parameters: Sequence[TrainedParameter], groups: ReductionGroups) -> torch.Tensor:
    """Compute the norm of the whole model's gradient, as a 0-dim float64 tensor.

    Each parameter counts once. A collective over all groups, to be called after
    :func:`reduce_gradients`. The result is the same on every rank.
    """
    counted = [p.gradient for p in parameters if _counts(p, groups)]
    device = local_part(parameters[0].parameter).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for gradient in counted:
        total += gradient.double().square().sum()
    sums = [groups.tensor, groups.pipeline]
    if any(p.sharded for p in parameters):
        sums.append(groups.domain)
    for group in sums:
        if group.size() > 1:
            dist.all_reduce(total, group=group)
    return total.sqrt()


def _counts(parameter: TrainedParameter, groups: ReductionGroups) -> bool:
    """Return whether this copy of a parameter counts, which is true on one rank only."""
    repeated = parameter.kind.split is None and groups.tensor.rank() > 0
    second = parameter.kind.shared and groups.pipeline.rank() > 0
    return not (repeated or second)


def clip_gradients(
    parameters: Sequence[TrainedParameter], norm: torch.Tensor, limit: float
) -> None:
    """Scale gradients in place so that their global norm is at most the limit, unless it is 0."""
    if limit <= 0:
        return
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)  # the constant of torch's ``clip_grad_norm_``
    for parameter in parameters:
        gradient = parameter.gradient
        gradient.mul_(factor.to(gradient.dtype))


def sum_losses(
    losses: Mapping[str, torch.Tensor],
    names: Sequence[str],
    groups: ReductionGroups,
    device: torch.device,
) -> torch.Tensor:
    """Sum the parts of the losses that the ranks have computed.

    A collective over the domain and the pipeline. Tensor parallel ranks have equal parts. The names
    are the same on every rank; a loss that this rank did not compute counts as 0.

    Returns:
        ``[len(names)]`` float64.
    """
    none = torch.zeros((), dtype=torch.float64, device=device)
    total = torch.stack([losses.get(name, none).to(device, torch.float64) for name in names])
    for group in (groups.domain, groups.pipeline):
        if group.size() > 1:
            dist.all_reduce(total, group=group)
    return total


def make_optimiser(
    parameters: Sequence[TrainedParameter], *, weight_decay: float
) -> torch.optim.AdamW:
    """Create AdamW for a rank's parameters. The learning rate is set before each step.

    Only matrices decay. Vectors, the norms, do not.
    """
    matrices = [p.parameter for p in parameters if p.parameter.dim() > 1]
    vectors = [p.parameter for p in parameters if p.parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=EPSILON)


def learning_rate(step: int, options: OptimiserOptions) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine decay to a tenth.

    Steps count from 0. The highest rate is reached in step ``warmup_steps - 1``.

    >>> options = OptimiserOptions(steps=6, learning_rate=1.0, warmup_steps=2)
    >>> [round(learning_rate(step, options), 3) for step in range(7)]
    [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]
    """
    steps, warmup_steps, highest = options.steps, options.warmup_steps, options.learning_rate
    if step < warmup_steps:
        return highest * (step + 1) / warmup_steps
    past = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    return highest * (FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * past)) / 2)


def set_learning_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate for the following steps."""
    for group in optimiser.param_groups:
        group["lr"] = value
