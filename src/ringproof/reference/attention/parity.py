"""Is CP attention exact here? One case, measured on every rank against the dense oracle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import torch
import torch.distributed as dist

from ringproof.reference.attention.attention import AttentionOptions, context_parallel_attention
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.communicator import Traffic
from ringproof.reference.attention.dense import DenseResult, dense_attention
from ringproof.reference.packing.partition import rank_spans
from ringproof.reference.topology.context import ParallelContext

FLOAT64_TOLERANCE = 1e-10
# In lower precision the CP result may be as far from the float64 truth as twice the same kernel
# on one rank (two partial results may each carry the rounding of one), and, where one rank was
# lucky, two roundings of the largest value: of a partial result and of the sum.
LOW_PRECISION_FACTOR = 2.0
ROUNDINGS = 2.0


def measure(
    case: ParityCase,
    context: ParallelContext,
    device: torch.device,
    *,
    group: dist.ProcessGroup | Sequence[dist.ProcessGroup] | None = None,
    traffic: Traffic | None = None,
) -> dict[str, object]:
    """Run one case on this rank and reduce the errors over the world. A collective.

    Args:
        case: What to run; its world is the context's CP size.
        context: This rank's groups.
        device: Where the tensors live.
        group: Groups to give the attention instead of the right ones: how a test shows that a
            wrong group is caught.
        traffic: Counts what is sent, when given.

    Returns:
        ``pass``, ``world``, ``max_abs_error`` and ``tolerance`` by tensor, and the case. The
        same on every rank. An error that is not a number counts as infinite.
    """
    inputs = _inputs(case, device)
    dense = dense_attention(*inputs, causal=case.causal, scale=case.scale)
    rank = context.context_parallel_group.rank()
    spans = rank_spans(case.seq_len, case.world, rank, case.partition)
    rows = torch.cat([torch.arange(s.start, s.stop, device=device) for s in spans])
    if group is None:
        levels = context.hierarchical_groups
        group = levels if case.comm_type == "a2a+p2p" else context.context_parallel_group
    q, k, v, grad_out = (tensor[:, rows] for tensor in inputs)
    found = _run(case, (q, k, v), grad_out, comm_type=case.comm_type, group=group, traffic=traffic)
    errors = _reduce(_errors(found, dense, rows), device)
    tolerance = dict.fromkeys(errors, FLOAT64_TOLERANCE)
    if case.dtype != "float64":
        tolerance = _single_rank_tolerance(case, inputs, dense, context)
    return {
        "pass": all(errors[name] <= tolerance[name] for name in errors),
        "world": case.world,
        "max_abs_error": errors,
        "tolerance": tolerance,
        "case": asdict(case),
        "backend": dist.get_backend(),
        "device": device.type,
        "torch": torch.__version__,
    }


def _inputs(case: ParityCase, device: torch.device) -> tuple[torch.Tensor, ...]:
    """q, k, v and the output's gradient, drawn on the CPU so that every device sees the same."""
    generator = torch.Generator().manual_seed(case.seed)
    shapes = (
        (case.heads, case.head_dim),
        (case.kv_heads, case.head_dim),
        (case.kv_heads, case.v_head_dim),
        (case.heads, case.v_head_dim),
    )
    return tuple(
        torch.randn(case.batch, case.seq_len, *shape, generator=generator, dtype=torch.float64).to(
            device, getattr(torch, case.dtype)
        )
        for shape in shapes
    )


def _run(
    case: ParityCase,
    inputs: tuple[torch.Tensor, ...],
    grad_out: torch.Tensor,
    *,
    comm_type: str,
    group: dist.ProcessGroup | Sequence[dist.ProcessGroup],
    traffic: Traffic | None = None,
) -> dict[str, torch.Tensor]:
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in inputs)
    options = AttentionOptions(
        causal=case.causal,
        partition=case.partition,
        scale=case.scale,
        kernel=case.kernel,
        kv_replication=case.kv_replication,
    )
    out, lse = context_parallel_attention(
        q, k, v, comm_type=comm_type, group=group, options=options, traffic=traffic
    )
    out.backward(grad_out)
    return {"out": out.detach(), "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}


def _errors(
    found: Mapping[str, torch.Tensor], dense: DenseResult, rows: torch.Tensor
) -> dict[str, torch.Tensor]:
    return {
        name: (tensor.double() - getattr(dense, name)[:, rows]).abs().max()
        for name, tensor in found.items()
    }


def _reduce(errors: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, float]:
    """The largest error of any rank. Backends may drop NaN in a maximum, so it becomes inf."""
    stacked = torch.stack(list(errors.values())).to(device)
    stacked = stacked.masked_fill(stacked.isnan(), math.inf)
    dist.all_reduce(stacked, op=dist.ReduceOp.MAX)
    return dict(zip(errors, stacked.tolist(), strict=True))


def _single_rank_tolerance(
    case: ParityCase,
    inputs: tuple[torch.Tensor, ...],
    dense: DenseResult,
    context: ParallelContext,
) -> dict[str, float]:
    """Twice the error of the same kernel and data type on one rank, and two roundings."""
    alone = context.groups["TENSOR_MODEL_PARALLEL_GROUP"]
    single = replace(case, kv_replication=1)
    found = _run(single, inputs[:3], inputs[3], comm_type="p2p", group=alone)
    rows = torch.arange(case.seq_len, device=inputs[0].device)
    limits = {
        name: LOW_PRECISION_FACTOR * error
        + ROUNDINGS * torch.finfo(found[name].dtype).eps * getattr(dense, name).abs().max()
        for name, error in _errors(found, dense, rows).items()
    }
    return _reduce(limits, inputs[0].device)
