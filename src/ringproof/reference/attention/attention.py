"""CP attention: the four communication types as combinations of one exchange and one loop.

==========  ===================  =========================
type        head exchange over   blocks over
==========  ===================  =========================
p2p         nothing              ring of the CP group
all_gather  nothing              all-gather of the CP group
a2a         the CP group         nothing (one local block)
a2a+p2p     level 0              ring of level 1
==========  ===================  =========================

The names are Megatron-LM's ``cp_comm_type``. Packing changes none of it: a pack is rows like any
others, and which of them meet is in the step table; or, where a captured graph must serve many
packs, in tensors (``masks``). All of this is decided by a plan (``plan``), which a model makes once
for a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ringproof.errors import InputError
from ringproof.reference.attention.communicator import Traffic
from ringproof.reference.attention.exchange import HeadExchange
from ringproof.reference.attention.heads import check_heads
from ringproof.reference.attention.kernels import choose_kernel
from ringproof.reference.attention.loop import BlockwiseAttention, LoopPlan
from ringproof.reference.attention.masks import RowTable
from ringproof.reference.attention.plan import AttentionPlan, GroupRows, Groups, plan_attention
from ringproof.reference.packing.sequences import PackedSequences


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """What to compute, apart from how it is communicated.

    Args:
        causal: Hide keys that come after the query.
        partition: Partition of the sequence over the flat CP group, ``zigzag`` or ``contiguous``.
        scale: Softmax scale; ``D ** -0.5`` when ``None``.
        kernel: Local math: ``sdpa`` (ATen's flash attention), ``reference`` (any data type), or
            ``auto``, which is flash where it serves device, data type and width.
        kv_replication: Copies of each key/value head made before an all-to-all, for models with
            fewer of them than the exchanging group has ranks. Multiplies the key/value traffic.
    """

    causal: bool = True
    partition: str = "zigzag"
    scale: float | None = None
    kernel: str = "auto"
    kv_replication: int = 1


def context_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    comm_type: str,
    group: Groups,
    packed: PackedSequences | None = None,
    table: RowTable | None = None,
    options: AttentionOptions | None = None,
    traffic: Traffic | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over rows that are cut over a CP group. Exact, differentiable in q, k, v.

    Args:
        q: ``[B, S, H, D]`` (BSHD), this rank's rows in ascending order of position; with
            ``packed`` or ``table`` ``[S, H, D]`` (THD).
        k: The same with ``G`` heads; ``G`` divides ``H``.
        v: The same with ``G`` heads of width ``V``.
        group: The flat CP group; for ``a2a+p2p`` its two levels, all-to-all first. The rank
            with index ``i`` in level 0 and ``o`` in level 1 holds the rows of flat rank
            ``o * size(level 0) + i``.
        packed: The sequences in the rows of the whole group. None sees another, nor padding.
        table: The same as tensors, of all ranks' rows. ``packed`` and the partition are then not
            looked at, and the tensors only by the kernels, forward and backward.

    The plan of the call is made here, which copies row numbers to a GPU. In a CUDA graph, make it
    before with :func:`~ringproof.reference.attention.plan.plan_attention`, and call
    :func:`planned_attention`.

    Returns:
        ``out [B, S, H, V]`` in q's data type and the natural-log ``lse [B, S, H]`` (float32, or
        float64 for float64), not differentiable; without ``B`` for a pack. Rows of padding,
        whatever they hold, have zero output, an LSE of minus infinity and zero gradients.

    Raises:
        InputError: An unknown name, wrong groups, or shapes that the type or the pack cannot
            serve. Raised on every rank before anything is sent.
    """
    options = options or AttentionOptions()
    _check_tensors(q, k, v, thd=packed is not None or table is not None)
    group_rows = GroupRows(
        rows=q.shape[-3],
        packed=packed,
        table=table,
        partition=options.partition,
        causal=options.causal,
    )
    plan = plan_attention(
        group_rows, comm_type=comm_type, group=group, device=q.device, traffic=traffic
    )
    return planned_attention(q, k, v, plan, options)


def planned_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: AttentionPlan,
    options: AttentionOptions,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`context_parallel_attention` by a plan that was made before for these rows.

    Mask and partition are those of the plan, not those of the options.

    Raises:
        InputError: Shapes that the plan cannot serve, or a kernel that cannot serve the tensors.
    """
    _check_tensors(q, k, v, thd=plan.thd)
    if q.shape[-3] != plan.group_rows.rows:
        problem = f"there are {q.shape[-3]} rows, and the plan is for {plan.group_rows.rows}"
        raise InputError("q, k, v", f"{problem}; pass the tensors that it was made for")
    check_heads(q.shape[-2], k.shape[-2], plan.exchange_size, options.kv_replication)
    if plan.group_rows.table is not None and options.kernel == "sdpa" and q.device.type != "cpu":
        problem = f"'sdpa' takes no mask from a table on {q.device.type}"
        raise InputError("kernel", f"{problem}; use auto or reference")
    if plan.thd:
        q, k, v = (tensor.unsqueeze(0) for tensor in (q, k, v))
    if options.kv_replication > 1:
        k, v = (kv.repeat_interleave(options.kv_replication, dim=2) for kv in (k, v))
    scale = q.shape[-1] ** -0.5 if options.scale is None else options.scale
    if scale <= 0:  # flash kernels hide keys before they scale, and take only a positive scale
        q, scale = (-q, -scale) if scale else (q * 0.0, 1.0)
    loop = LoopPlan(
        steps=plan.steps,
        blocks=plan.blocks,
        kernel=choose_kernel(options.kernel, q, v),
        scale=scale,
    )
    out, lse = _attend(q, k, v, loop, plan.heads)
    return (out.squeeze(0), lse.squeeze(0)) if plan.thd else (out, lse)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: LoopPlan,
    heads: HeadExchange | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loop, between two head exchanges where there are any."""
    if heads is None:
        return BlockwiseAttention.apply(q, k, v, plan)
    out, lse = BlockwiseAttention.apply(*heads.to_heads(q, k, v), plan)
    with torch.no_grad():  # apart from the output, so that it costs nothing in the backward
        lse = heads.to_sequence(lse.unsqueeze(-1))[0].squeeze(-1)
    return heads.to_sequence(out)[0], lse


def _check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, thd: bool) -> None:
    kinds = sorted({f"{t.dtype} on {t.device}" for t in (q, k, v)})
    if len(kinds) > 1 or not q.dtype.is_floating_point:
        problem = f"these are {' and '.join(kinds)}, and not of one floating type and device"
        raise InputError("q, k, v", f"{problem}; cast or move them")
    shapes = [tuple(t.shape) for t in (q, k, v)]
    layout = ("rows", "heads", "width") if thd else ("batch", "sequence", "heads", "width")
    if any(len(shape) != len(layout) or 0 in shape for shape in shapes):
        raise InputError("q, k, v", f"the shapes {shapes} are not all [{', '.join(layout)}]")
    if len({shape[:-2] for shape in shapes}) > 1 or k.shape[-2] != v.shape[-2]:
        problem = f"the shapes {shapes} differ in batch, sequence or key/value heads"
        raise InputError("q, k, v", f"{problem}; make these equal")
    if q.shape[-1] != k.shape[-1]:
        raise InputError("q, k", f"the shapes {shapes[:2]} differ in head width; make it equal")
