"""CP attention: the four communication types as combinations of one exchange and one loop.

==========  ===================  =========================
type        head exchange over   blocks over
==========  ===================  =========================
p2p         nothing              ring of the CP group
all_gather  nothing              all-gather of the CP group
a2a         the CP group         nothing (one local block)
a2a+p2p     level 0              ring of level 1
==========  ===================  =========================

The names are Megatron-LM's ``cp_comm_type``.
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
from ringproof.reference.attention.names import COMM_TYPES, check_name
from ringproof.reference.attention.steps import step_table
from ringproof.reference.packing.partition import Span, check_divisible, join, rank_spans


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


@dataclass(frozen=True)
class _Levels:
    """The flat CP group as inner (head exchange) times outer (blocks); either may be one rank."""

    inner_size: int
    inner_rank: int
    outer_size: int
    outer_rank: int
    seq_len: int
    partition: str

    def shards_to_exchange(self) -> list[tuple[Span, ...]]:
        """Positions held by the ranks of this inner group."""
        return self._shards(self.outer_rank)

    def shards_in_ring(self) -> list[tuple[Span, ...]]:
        """Positions held by each rank of the outer group once the sequence is gathered."""
        return [
            join(span for shard in self._shards(outer) for span in shard)
            for outer in range(self.outer_size)
        ]

    def _shards(self, outer: int) -> list[tuple[Span, ...]]:
        size = self.inner_size * self.outer_size
        first = outer * self.inner_size
        return [
            rank_spans(self.seq_len, size, rank, self.partition)
            for rank in range(first, first + self.inner_size)
        ]


def context_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    comm_type: str,
    group: dist.ProcessGroup | Sequence[dist.ProcessGroup],
    options: AttentionOptions | None = None,
    traffic: Traffic | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over a sequence that is cut over a CP group. Exact, differentiable in q, k, v.

    Args:
        q: ``[B, S, H, D]``, this rank's rows in ascending order of position.
        k: ``[B, S, G, D]``; ``G`` divides ``H``.
        v: ``[B, S, G, V]``.
        comm_type: One of :data:`COMM_TYPES`.
        group: The flat CP group; for ``a2a+p2p`` its two levels, all-to-all first. The rank
            with index ``i`` in level 0 and ``o`` in level 1 holds the rows of flat rank
            ``o * size(level 0) + i``.
        options: Mask, partition, scale, kernel.
        traffic: Counts what is sent, when given.

    Returns:
        ``out [B, S, H, V]`` in q's data type and the natural-log ``lse [B, S, H]`` (float32, or
        float64 for float64), not differentiable.

    Raises:
        InputError: An unknown name, wrong groups, or shapes that the type cannot serve. Raised
            on every rank before anything is sent.
    """
    options = options or AttentionOptions()
    inner, outer = _communicators(comm_type, group, traffic)
    _check_tensors(q, k, v)
    seq_len = q.shape[1] * _size(inner) * _size(outer)
    _check_shapes(q, k, v)
    check_heads(q.shape[2], k.shape[2], _size(inner), options.kv_replication)
    check_divisible(seq_len, _size(inner) * _size(outer), options.partition)
    levels = _Levels(
        _size(inner), _rank(inner), _size(outer), _rank(outer), seq_len, options.partition
    )
    if options.kv_replication > 1:
        k, v = (kv.repeat_interleave(options.kv_replication, dim=2) for kv in (k, v))
    plan = LoopPlan(
        steps=step_table(levels.shards_in_ring(), _rank(outer), causal=options.causal),
        exchange=_block_exchange(comm_type, outer),
        kernel=choose_kernel(options.kernel, q, v),
        scale=q.shape[-1] ** -0.5 if options.scale is None else options.scale,
    )
    if inner is None:
        return _attend(q, k, v, plan)
    exchange = HeadExchange.of(inner, levels.shards_to_exchange())
    q, k, v = exchange.to_heads(q, k, v)
    out, lse = _attend(q, k, v, plan)
    with torch.no_grad():  # apart from the output, so that it costs nothing in the backward
        lse = exchange.to_sequence(lse.unsqueeze(-1))[0].squeeze(-1)
    return exchange.to_sequence(out)[0], lse


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: LoopPlan
) -> tuple[torch.Tensor, torch.Tensor]:
    return BlockwiseAttention.apply(q, k, v, plan)


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


def _check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    shapes = [tuple(t.shape) for t in (q, k, v)]
    if any(len(shape) != 4 or 0 in shape for shape in shapes):
        raise InputError("q, k, v", shapes, "not [batch, sequence, heads, width]", "reshape them")
    if len({shape[:2] for shape in shapes}) > 1 or k.shape[2] != v.shape[2]:
        raise InputError("q, k, v", shapes, "batch, sequence or kv heads differ", "make them equal")
    if q.shape[-1] != k.shape[-1]:
        raise InputError("q, k", shapes[:2], "head dimensions differ", "make them equal")
