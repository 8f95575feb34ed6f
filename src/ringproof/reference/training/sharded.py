"""FSDP2: each rank of the DP x CP domain keeps a shard of the parameters.

It works with pipelines, with tensor parallelism (the part of each TP rank is sharded separately)
and with Dynamic CP. The ranks of a domain run the same number of microbatches through the same
layers, so that their gathers and reductions match for any CP groups.

torch's pipeline schedules treat a stage that is an FSDP module in a special way, which differs
between versions. So the FSDP module is wrapped in a plain module, and the reduction is enabled
before the backward of a step's last microbatch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from ringproof.errors import InputError
from ringproof.reference.model.stage import Stage
from ringproof.reference.training.pipeline import StageCall


def shard_stage(stage: Stage, domain: dist.ProcessGroup, device: torch.device) -> StageCall:
    """Shard a stage's parameters in place: each layer on its own, and the rest together.

    Parameters are freed after the forward and gathered again for the backward, since in a pipeline
    other microbatches run between the two.

    Raises:
        InputError: The device is a CPU, on which this version of torch cannot shard.
    """
    if device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        problem = f"FSDP2 of torch {torch.__version__} does not work on a CPU"
        raise InputError("fully_sharded", f"{problem}; update torch, or replicate parameters")
    mesh = DeviceMesh.from_group(domain, device.type, mesh_dim_names=("domain",))
    call = StageCall(stage)
    for module in (*stage.layers.values(), call):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    for module in call.modules():
        if isinstance(module, FSDPModule):
            _sum_gradients(module)
    return call


def _sum_gradients(module: Any) -> None:
    """Reduce gradients to their sum over the domain instead of FSDP2's mean.

    ``set_gradient_divide_factor`` is called ``set_reduce_scatter_divide_factor`` before torch 2.8.
    Only NCCL has a reduction that also scales, so the plain sum is used where torch has an option
    for it. Earlier versions cannot reduce float32 over gloo.
    """
    if hasattr(module, "set_gradient_divide_factor"):
        module.set_gradient_divide_factor(1.0)
    else:
        module.set_reduce_scatter_divide_factor(1.0)
    if hasattr(module, "set_force_sum_reduction_for_comms"):
        module.set_force_sum_reduction_for_comms(True)
    if hasattr(module, "set_reduce_scatter_unused_params"):
        module.set_reduce_scatter_unused_params(True)
