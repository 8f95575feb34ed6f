"""Measures one case of CP attention on every rank against the dense oracle.

Rows of padding hold NaN in every input: whatever touched one of them would show.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist

from ringproof.reference.attention.attention import AttentionOptions, context_parallel_attention
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.communicator import Traffic
from ringproof.reference.attention.dense import (
    DenseResult,
    dense_attention,
    dense_packed_attention,
)
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.packing.shards import Sharding
from ringproof.reference.topology.catalogue import CONTEXT_PARALLEL
from ringproof.reference.topology.census import print_census
from ringproof.reference.topology.context import ParallelContext, parallel_context
from ringproof.reference.topology.layout import RankLayout

# The flat CP group, its levels, and a one-rank group for the single-rank comparison.
GROUPS = (CONTEXT_PARALLEL, "TENSOR_MODEL_PARALLEL_GROUP")
FLOAT64_TOLERANCE = 1e-10
# In lower precision the CP result may be as far from the float64 truth as twice the same kernel
# on one rank (two partial results may each carry the rounding of one), and, where one rank was
# lucky, two roundings of the largest value: of a partial result and of the sum.
LOW_PRECISION_FACTOR = 2.0
ROUNDINGS = 2.0


def demonstrate(
    cases: Sequence[ParityCase], device: torch.device, *, evidence: bool = False
) -> list[dict[str, Any]]:
    """Measure cases of one world and level sizes. A collective over that world.

    Args:
        cases: They share ``world`` and, where they have them, ``hierarchical_sizes``.
        evidence: Write census and traffic lines to stderr, for ``ringproof logs groups``.
    """
    sizes = next((case.hierarchical_sizes for case in cases if case.hierarchical_sizes), ())
    traffic = Traffic()
    layout = RankLayout(cp=cases[0].world)
    with parallel_context(layout, sizes, descriptions=GROUPS) as context:
        if evidence:
            print_census(sys.stderr)
        results = [measure(case, context, device, traffic=traffic) for case in cases]
        if evidence:
            print_traffic(traffic, context)
    return results


def print_traffic(traffic: Traffic, context: ParallelContext) -> None:
    """Write one marker line per group of this rank to stderr."""
    sys.stderr.writelines(line.format() + "\n" for line in traffic.lines(context.groups))


def measure(
    case: ParityCase,
    context: ParallelContext,
    device: torch.device,
    *,
    group: dist.ProcessGroup | Sequence[dist.ProcessGroup] | None = None,
    packed: PackedSequences | None = None,
    traffic: Traffic | None = None,
) -> dict[str, object]:
    """Run one case on this rank and reduce the errors over the world. A collective.

    Args:
        case: Case to run; its world is the context's CP size.
        group: Groups to give the attention instead of the right ones: how a test shows that a
            wrong group is caught.
        packed: A pack to give it instead of the right one.

    Returns:
        ``pass``, ``world``, ``layout``, ``max_abs_error`` and ``tolerance`` by tensor, and the
        case. The same on every rank. An error that is not a number counts as infinite.
    """
    inputs = _inputs(case, device)
    dense = _dense(case, inputs)
    rank = context.context_parallel_group.rank()
    rows = _rows(case, rank).to(device)
    if group is None:
        levels = context.hierarchical_groups
        group = levels if case.comm_type == "a2a+p2p" else context.context_parallel_group
    local = tuple(tensor.index_select(-3, rows) for tensor in inputs)
    given = case if packed is None else replace(case, packed=packed)
    found = _run(given, local, comm_type=case.comm_type, group=group, traffic=traffic)
    errors = _reduce(_errors(case, found, dense, rows), device)
    tolerance = dict.fromkeys(errors, FLOAT64_TOLERANCE)
    if case.dtype != "float64":
        tolerance = _single_rank_tolerance(case, inputs, dense, context)
    return {
        "pass": all(errors[name] <= tolerance[name] for name in errors),
        "world": case.world,
        "layout": case.layout,
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
    lead = (case.seq_len,) if case.packed else (case.batch, case.seq_len)
    inputs = [
        torch.randn(*lead, *shape, generator=generator, dtype=torch.float64) for shape in shapes
    ]
    if case.packed:
        padding = torch.ones(case.seq_len, dtype=torch.bool)
        for span in case.packed.real_spans:
            padding[span.index] = False
        for tensor in inputs:
            tensor[padding] = torch.nan
    return tuple(tensor.to(device, getattr(torch, case.dtype)) for tensor in inputs)


def _dense(case: ParityCase, inputs: tuple[torch.Tensor, ...]) -> DenseResult:
    q, k, v, grad_out = inputs
    if case.packed is None:
        return dense_attention(q, k, v, grad_out, causal=case.causal, scale=case.scale)
    return dense_packed_attention(
        q, k, v, grad_out, packed=case.packed, causal=case.causal, scale=case.scale
    )


def _rows(case: ParityCase, rank: int) -> torch.Tensor:
    """Positions of a rank's rows."""
    if case.packed is None:
        sharding = Sharding.of_sequence(case.seq_len, case.world, case.partition)
    else:
        sharding = Sharding.of_pack(case.packed, case.world, case.partition)
    return torch.cat([torch.arange(span.start, span.stop) for span in sharding.shards[rank]])


def _run(
    case: ParityCase,
    inputs: tuple[torch.Tensor, ...],
    *,
    comm_type: str,
    group: dist.ProcessGroup | Sequence[dist.ProcessGroup],
    traffic: Traffic | None = None,
) -> dict[str, torch.Tensor]:
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in inputs[:3])
    options = AttentionOptions(
        causal=case.causal,
        partition=case.partition,
        scale=case.scale,
        kernel=case.kernel,
        kv_replication=case.kv_replication,
    )
    out, lse = context_parallel_attention(
        q,
        k,
        v,
        comm_type=comm_type,
        group=group,
        packed=case.packed,
        options=options,
        traffic=traffic,
    )
    out.backward(inputs[3])
    return {"out": out.detach(), "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}


def _errors(
    case: ParityCase,
    found: Mapping[str, torch.Tensor],
    dense: DenseResult,
    rows: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Largest differences. Equal infinities, the LSE of padding, do not differ."""
    errors = {}
    for name, tensor in found.items():
        right = getattr(dense, name).index_select(0 if case.packed else 1, rows)
        difference = (tensor.double() - right).abs()
        errors[name] = difference.masked_fill(tensor.double() == right, 0.0).max()
    return errors


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
    found = _run(single, inputs, comm_type="p2p", group=alone)
    rows = torch.arange(case.seq_len, device=inputs[0].device)
    limits = {}
    for name, error in _errors(case, found, dense, rows).items():
        right = getattr(dense, name)
        largest = right.masked_fill(right.isinf(), 0.0).abs().max()
        rounding = ROUNDINGS * torch.finfo(found[name].dtype).eps * largest
        limits[name] = LOW_PRECISION_FACTOR * error + rounding
    return _reduce(limits, inputs[0].device)
