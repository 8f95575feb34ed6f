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
packs, in tensors (``masks``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.attention.blocks import BlockExchange, Gather, Local, Ring
from ringproof.reference.attention.communicator import Communicator, Traffic
from ringproof.reference.attention.exchange import HeadExchange
from ringproof.reference.attention.heads import check_heads
from ringproof.reference.attention.kernels import choose_kernel
from ringproof.reference.attention.loop import BlockwiseAttention, LoopPlan
from ringproof.reference.attention.masks import RowTable, masked_steps
from ringproof.reference.attention.names import COMM_TYPES, check_name
from ringproof.reference.attention.steps import Step, step_table
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.packing.shards import Sharding


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """What to compute, apart from how it is communicated.

    Args:
        causal: Hide keys that come after the query.
        partition: How the sequence is cut over the flat CP group, ``zigzag`` or ``contiguous``.
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
    group: dist.ProcessGroup | Sequence[dist.ProcessGroup],
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
        comm_type: One of :data:`COMM_TYPES`.
        group: The flat CP group; for ``a2a+p2p`` its two levels, all-to-all first. The rank
            with index ``i`` in level 0 and ``o`` in level 1 holds the rows of flat rank
            ``o * size(level 0) + i``.
        packed: The sequences in the rows of the whole group. None sees another, nor padding.
        table: The same as tensors, of all ranks' rows. ``packed`` and the partition are then not
            looked at, and the tensors only by the kernels, forward and backward.
        options: Mask, partition, scale, kernel.
        traffic: Counts what is sent, when given.

    Returns:
        ``out [B, S, H, V]`` in q's data type and the natural-log ``lse [B, S, H]`` (float32, or
        float64 for float64), not differentiable; without ``B`` for a pack. Rows of padding,
        whatever they hold, have zero output, an LSE of minus infinity and zero gradients.

    Raises:
        InputError: An unknown name, wrong groups, or shapes that the type or the pack cannot
            serve. Raised on every rank before anything is sent.
    """
    options = options or AttentionOptions()
    inner, outer = _communicators(comm_type, group, traffic)
    _check_tensors(q, k, v)
    thd = packed is not None or table is not None
    _check_shapes(q, k, v, thd=thd)
    check_heads(q.shape[-2], k.shape[-2], _size(inner), options.kv_replication)
    if table is None:
        steps, exchange = _of_pack(q, packed, inner, outer, options)
    else:
        steps, exchange = _of_table(q, table, inner, outer, options)
    if thd:
        q, k, v = (tensor.unsqueeze(0) for tensor in (q, k, v))
    if options.kv_replication > 1:
        k, v = (kv.repeat_interleave(options.kv_replication, dim=2) for kv in (k, v))
    plan = LoopPlan(
        steps=steps,
        exchange=_block_exchange(comm_type, outer),
        kernel=choose_kernel(options.kernel, q, v),
        scale=q.shape[-1] ** -0.5 if options.scale is None else options.scale,
    )
    out, lse = _attend(q, k, v, plan, exchange)
    return (out.squeeze(0), lse.squeeze(0)) if thd else (out, lse)


def _of_pack(
    q: torch.Tensor,
    packed: PackedSequences | None,
    inner: Communicator | None,
    outer: Communicator | None,
    options: AttentionOptions,
) -> tuple[tuple[Step, ...], HeadExchange | None]:
    """Steps and head exchange by the numbers of a pack, or of one sequence."""
    size = _size(inner) * _size(outer)
    if packed is None:
        sharding = Sharding.of_sequence(q.shape[1] * size, size, options.partition)
    else:
        sharding = Sharding.of_pack(packed, size, options.partition)
        _check_rows(q.shape[0], packed, size)
    exchange = None
    if inner:
        exchange = HeadExchange.of(inner, sharding.neighbours(_size(inner), _rank(outer)))
    gathered = sharding.gathered(_size(inner))
    return step_table(gathered, _rank(outer), causal=options.causal), exchange


def _of_table(
    q: torch.Tensor,
    table: RowTable,
    inner: Communicator | None,
    outer: Communicator | None,
    options: AttentionOptions,
) -> tuple[tuple[Step, ...], HeadExchange | None]:
    """Steps and head exchange by sizes alone."""
    _check_table(q, table, _size(inner) * _size(outer), options.kernel)
    exchange = HeadExchange.in_rank_order(inner, q.shape[0]) if inner else None
    gathered = table.gathered(_size(inner))
    return masked_steps(gathered, _rank(outer), causal=options.causal), exchange


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: LoopPlan,
    exchange: HeadExchange | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loop, between two head exchanges where there are any."""
    if exchange is None:
        return BlockwiseAttention.apply(q, k, v, plan)
    out, lse = BlockwiseAttention.apply(*exchange.to_heads(q, k, v), plan)
    with torch.no_grad():  # apart from the output, so that it costs nothing in the backward
        lse = exchange.to_sequence(lse.unsqueeze(-1))[0].squeeze(-1)
    return exchange.to_sequence(out)[0], lse


def _communicators(
    comm_type: str,
    group: dist.ProcessGroup | Sequence[dist.ProcessGroup],
    traffic: Traffic | None,
) -> tuple[Communicator | None, Communicator | None]:
    """The groups of the head exchange and of the blocks, each ``None`` where nothing moves."""
    check_name("comm_type", comm_type, COMM_TYPES)
    if comm_type == "a2a+p2p":
        if not isinstance(group, Sequence) or len(group) != 2:
            raise InputError(
                "group",
                type(group).__name__,
                "a2a+p2p takes two levels",
                "pass [all-to-all group, ring group]",
            )
        levels = Communicator(group[0], traffic), Communicator(group[1], traffic)
        _check_levels(*levels)
        return levels
    if isinstance(group, Sequence):
        raise InputError(
            "group", type(group).__name__, f"{comm_type} takes one group", "pass the flat CP group"
        )
    communicator = Communicator(group, traffic)
    return (communicator, None) if comm_type == "a2a" else (None, communicator)


def _block_exchange(comm_type: str, outer: Communicator | None) -> BlockExchange:
    if outer is None or outer.size == 1:
        return Local()
    return Gather(outer) if comm_type == "all_gather" else Ring(outer)


def _size(communicator: Communicator | None) -> int:
    return communicator.size if communicator else 1


def _rank(communicator: Communicator | None) -> int:
    return communicator.rank if communicator else 0


def _check_levels(inner: Communicator, outer: Communicator) -> None:
    """Two levels of one hierarchy have this rank in common and no other."""
    common = set(inner.global_ranks) & set(outer.global_ranks)
    if len(common) != 1:
        raise InputError(
            "group",
            [inner.global_ranks, outer.global_ranks],
            f"the levels share {len(common)} ranks instead of one",
            "pass the two levels that cut one CP group",
        )


def _check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    kinds = sorted({f"{t.dtype} on {t.device}" for t in (q, k, v)})
    if len(kinds) > 1 or not q.dtype.is_floating_point:
        raise InputError(
            "q, k, v", kinds, "not of one floating type and device", "cast or move them"
        )


def _check_rows(rows: int, packed: PackedSequences, size: int) -> None:
    """The tensors have the rows that the pack says they have."""
    if rows * size != packed.rows:
        raise InputError(
            "packed",
            f"{packed.rows} rows",
            f"q has {rows} on each of {size} ranks",
            "pass the pack that the tensors were cut by",
        )


def _check_table(q: torch.Tensor, table: RowTable, size: int, kernel: str) -> None:
    """The table is of these ranks' rows, and the kernel is one that masks."""
    if kernel == "sdpa":
        raise InputError("kernel", kernel, "takes no mask from a table", "use auto or reference")
    for name, tensor in (("sequences", table.sequences), ("positions", table.positions)):
        found = f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
        wanted = f"{(size, q.shape[0])} {torch.int64} on {q.device}"
        if found != wanted:
            remedy = "make the table for this group and capacity"
            raise InputError(f"table.{name}", found, f"the group needs {wanted}", remedy)


def _check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, thd: bool) -> None:
    shapes = [tuple(t.shape) for t in (q, k, v)]
    layout = ("rows", "heads", "width") if thd else ("batch", "sequence", "heads", "width")
    if any(len(shape) != len(layout) or 0 in shape for shape in shapes):
        raise InputError("q, k, v", shapes, f"not [{', '.join(layout)}]", "reshape them")
    if len({shape[:-2] for shape in shapes}) > 1 or k.shape[-2] != v.shape[-2]:
        raise InputError("q, k, v", shapes, "batch, sequence or kv heads differ", "make them equal")
    if q.shape[-1] != k.shape[-1]:
        raise InputError("q, k", shapes[:2], "head dimensions differ", "make them equal")
