"""FSDP2 instead of replicated parameters: each rank of the DPxCP domain keeps a shard.

Works with a pipeline, interleaved or not, with tensor parallelism (each TP rank's cut is sharded
on its own) and with Dynamic CP: the ranks of a domain run the same number of microbatches through
the same layers, so their gathers and reductions meet, whatever CP group a microbatch has.

torch's pipeline schedules handle a stage that is itself an FSDP module in their own way, and that
way has changed with versions. Here the stage that they see is a plain module around it, and the
reduction is switched on before the backward of a step's last microbatch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from ringproof.errors import InputError
from ringproof.reference.training.stages import BeforeBackward, StageCall


def domain_mesh(domain: dist.ProcessGroup, device: torch.device) -> DeviceMesh:
    """The domain as a one-dimensional device mesh. No group is created."""
    return DeviceMesh.from_group(domain, device.type, mesh_dim_names=("domain",))


def shard_stage(stage: nn.Module, layers: Iterable[nn.Module], mesh: DeviceMesh) -> StageCall:
    """Shard a stage's parameters in place: layer by layer, and the rest as one.

    All are freed after a forward and gathered again for its backward: with a pipeline, other
    microbatches pass between the two.

    Args:
        stage: Holds full parameters (of its TP rank); holds ``DTensor`` shards afterwards.
        layers: Those of its modules that are gathered one at a time.
        mesh: From :func:`domain_mesh`.

    Returns:
        What to hand to ``make_runner``, with :func:`reduce_with_last` for it.

    Raises:
        InputError: The mesh is of CPUs, which this version of torch cannot shard over.
    """
    if mesh.device_type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        problem = f"FSDP2 of torch {torch.__version__} needs GPUs"
        raise InputError("fully_sharded", "cpu", problem, "update torch, or replicate parameters")
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    call = StageCall(stage)
    fully_shard(call, mesh=mesh, reshard_after_forward=True)
    for module in call.modules():
        if isinstance(module, FSDPModule):
            _sum_gradients(module)
    return call


def reduce_with_last(call: nn.Module) -> BeforeBackward:
    """What defers the reduction of a sharded stage's gradients to the last microbatch."""
    sharded: Any = call

    def before_backward(last: bool) -> None:
        sharded.set_requires_gradient_sync(last)

    return before_backward


def _sum_gradients(module: Any) -> None:
    """Reduce gradients to their sum over the domain; FSDP2's own is the mean.

    ``set_gradient_divide_factor`` is called ``set_reduce_scatter_divide_factor`` before torch 2.8.
    A reduction that multiplies exists in NCCL only, hence the plain sum where it can be asked for;
    earlier versions cannot reduce single precision over gloo.
    """
    if hasattr(module, "set_gradient_divide_factor"):
        module.set_gradient_divide_factor(1.0)
    else:
        module.set_reduce_scatter_divide_factor(1.0)
    if hasattr(module, "set_force_sum_reduction_for_comms"):
        module.set_force_sum_reduction_for_comms(True)
    if hasattr(module, "set_reduce_scatter_unused_params"):
        module.set_reduce_scatter_unused_params(True)
