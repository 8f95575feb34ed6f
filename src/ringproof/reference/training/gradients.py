"""What ranks add up after the microbatches of a step: gradients, their norm, losses.

Everything is a sum. The loss of a microbatch is already divided by what the whole global batch
holds, so a mean over ranks or microbatches would divide a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ringproof.reference.model.parameters import ParameterKind
from ringproof.reference.topology.context import ParallelContext, wait_for_connections
from ringproof.reference.topology.dynamic_catalogue import DOMAIN

TENSOR = "TENSOR_MODEL_PARALLEL_GROUP"
PIPELINE = "PIPELINE_MODEL_PARALLEL_GROUP"
REDUCED_OVER = (TENSOR, PIPELINE, DOMAIN)
"""Descriptions of the groups of the layout that a training uses."""
EMBEDDING_GROUP = "EMBEDDING_GROUP"
"""Upstream's ``group_desc`` of the stages that share the embedding (Megatron-LM core_v0.16.1)."""


@dataclass(frozen=True)
class TrainedParameter:
    """One parameter of this rank.

    Args:
        name: In the whole model, the same in every layout.
        kind: How it lies on tensor parallel ranks and stages.
        parameter: The tensor, or this rank's FSDP shard of it as a ``DTensor``.
    """

    name: str
    kind: ParameterKind
    parameter: nn.Parameter

    @property
    def sharded(self) -> bool:
        """Whether each rank of the domain holds a shard, with gradients summed over it already."""
        return isinstance(self.parameter, DTensor)

    @property
    def gradient(self) -> torch.Tensor:
        """What this rank holds of the gradient, as a plain tensor that can be written to.

        A parameter that no microbatch used gets a gradient of zeros.
        """
        if self.parameter.grad is None:
            self.parameter.grad = torch.zeros_like(self.parameter)
        return local_part(self.parameter.grad)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a ``DTensor``, sharing its memory; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def trained_parameters(stages: Iterable[nn.Module]) -> tuple[TrainedParameter, ...]:
    """The parameters of a rank's stages, in order. Ask after sharding, before the first step.

    Args:
        stages: Modules whose ``kinds`` maps the name of each parameter to its kind.
    """
    return tuple(
        TrainedParameter(name, stage.kinds[name], parameter)
        for stage in stages
        for name, parameter in stage.named_parameters()
    )


@dataclass(frozen=True)
class ReductionGroups:
    """Over whom sums are taken.

    Args:
        tensor: The tensor parallel ranks.
        pipeline: The pipeline's ranks.
        domain: The DP times CP ranks.
        embedding: First and last stage; ``None`` on other stages and without a pipeline.
    """

    tensor: dist.ProcessGroup
    pipeline: dist.ProcessGroup
    domain: dist.ProcessGroup
    embedding: dist.ProcessGroup | None


@contextmanager
def reduction_groups(
    context: ParallelContext, *, timeout: timedelta | None = None
) -> Iterator[ReductionGroups]:
    """The context's groups, and the embedding's, which is made here and destroyed after.

    A collective over the world. After an exception the group is left to the end of the process.

    Args:
        context: With the groups of the TP, PP and DP-with-CP axes.
        timeout: Of the embedding group's collectives.
    """
    layout, embedding = context.layout, None
    for ranks in layout.groups(("pp",)) if layout.pp > 1 else ():
        ends = [ranks[0], ranks[-1]]
        group = dist.new_group(ends, timeout=timeout, group_desc=EMBEDDING_GROUP)
        if context.rank in ends:
            embedding = group
    wait_for_connections()
    yield ReductionGroups(
        tensor=context.groups[TENSOR],
        pipeline=context.groups[PIPELINE],
        domain=context.groups[DOMAIN],
        embedding=embedding,
    )
    if embedding is not None:
        dist.destroy_process_group(embedding)


def reduce_gradients(parameters: Sequence[TrainedParameter], groups: ReductionGroups) -> None:
    """Make every gradient that of the whole global batch, in place.

    A collective over all groups. In this order: shared parameters over the stages that hold them,
    partial gradients over the tensor parallel ranks, and all of them over the domain, except
    what FSDP has summed there.

    Args:
        parameters: Of this rank; the same names in the same order on its domain and TP ranks.
        groups: See :class:`ReductionGroups`.
    """
    if groups.embedding is not None:
        shared = sorted((p for p in parameters if p.kind.shared), key=lambda p: p.name)
        sum_in_place([p.gradient for p in shared], groups.embedding)
    partial = [p.gradient for p in parameters if p.kind.partial_over_tensor_parallel]
    sum_in_place(partial, groups.tensor)
    sum_in_place([p.gradient for p in parameters if not p.sharded], groups.domain)


def sum_in_place(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Sum each tensor over a group: one all-reduce for each dtype.

    Args:
        tensors: The same shapes and dtypes in the same order on every rank.
        group: One rank leaves them as they are.
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
    """Norm of the whole model's gradient, each parameter counted once; 0-dim float64.

    A collective over all groups, after :func:`reduce_gradients`; the same on every rank.
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
    """Of several copies one counts: the first TP rank's, the first stage's."""
    repeated = parameter.kind.split is None and groups.tensor.rank() > 0
    second = parameter.kind.shared and groups.pipeline.rank() > 0
    return not (repeated or second)


def clip_gradients(
    parameters: Sequence[TrainedParameter], norm: torch.Tensor, limit: float
) -> None:
    """Scale gradients, in place, so that their global norm is at most the limit.

    Args:
        parameters: Of this rank.
        norm: From :func:`gradient_norm`.
        limit: 0 leaves them as they are.
    """
    if limit <= 0:
        return
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)  # as ``clip_grad_norm_`` of torch has it
    for parameter in parameters:
        gradient = parameter.gradient
        gradient.mul_(factor.to(gradient.dtype))


def sum_losses(
    losses: Mapping[str, torch.Tensor],
    names: Sequence[str],
    groups: ReductionGroups,
    device: torch.device,
) -> torch.Tensor:
    """The global losses, from what each rank has computed of them.

    A collective over the domain and the pipeline; tensor parallel ranks hold equal shares.

    Args:
        losses: From ``run_microbatches``.
        names: The same on every rank; a loss that this rank did not compute adds nothing.
        groups: See :class:`ReductionGroups`.
        device: Of the result.

    Returns:
        ``[len(names)]`` float64.
    """
    none = torch.zeros((), dtype=torch.float64, device=device)
    total = torch.stack([losses.get(name, none).to(device, torch.float64) for name in names])
    for group in (groups.domain, groups.pipeline):
        if group.size() > 1:
            dist.all_reduce(total, group=group)
    return total
