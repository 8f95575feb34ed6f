"""What moves between tensor parallel (TP) ranks, each operation next to its dual.

Letters: ``R`` rows of a microbatch on this CP rank, ``r = R / TP`` of them under sequence
parallelism (SP), ``h`` columns. TP ranks share the same rows; without SP each of them holds all.

=============  ==============================  ==============================
operation      forward                         backward
=============  ==============================  ==============================
enter, SP      all-gather ``[r, h] -> [R, h]``   reduce-scatter
enter          nothing                         all-reduce
leave, SP      reduce-scatter ``[R, h] -> [r, h]``  all-gather
leave          all-reduce                      nothing
scatter_rows   keep own rows ``[R, h] -> [r, h]``  all-gather
gather_rows    all-gather ``[r, h] -> [R, h]``   keep own rows
=============  ==============================  ==============================

The convention behind the table: every TP rank calls ``backward`` on the same loss. What is
replicated (without SP: the residual stream) has its whole gradient on every rank; what is computed
from a rank's own columns or heads has only a part of it, until ``enter`` sums the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from ringproof.errors import InputError
from ringproof.reference.attention.communicator import Communicator, wait


@dataclass(frozen=True)
class TensorParallel:
    """The TP ranks that hold one copy of the model together.

    Args:
        group: Their process group; ``None`` for a size of 1.
        size: How many.
        rank: This rank's index among them.
        sequence_parallel: Whether rows are cut over them between matrix products.
    """

    group: dist.ProcessGroup | None = None
    size: int = 1
    rank: int = 0
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size or (self.size > 1 and self.group is None):
            raise InputError(
                "tensor_parallel", self, "no group, or a rank outside of it", "use of(group)"
            )

    @classmethod
    def of(
        cls, group: dist.ProcessGroup | None, *, sequence_parallel: bool = False
    ) -> TensorParallel:
        """Size and rank as the group has them."""
        if group is None:
            return cls()
        return cls(group, group.size(), group.rank(), sequence_parallel)

    @property
    def rows_are_cut(self) -> bool:
        """Whether a rank holds only some rows of the residual stream: SP over several ranks.

        A replicated parameter that acts on rows then gets only a part of its gradient on each.
        """
        return self.sequence_parallel and self.size > 1


def enter(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Before column-parallel work: all rows, whose gradient is summed over TP on the way back.

    Args:
        x: ``[r, ...]`` under sequence parallelism, ``[R, ...]`` without.
        tp: The TP ranks.

    Returns:
        ``[R, ...]``.
    """
    if tp.size == 1:
        return x
    return _GatherReduceScatter.apply(x, tp) if tp.rows_are_cut else _IdentityAllReduce.apply(x, tp)


def leave(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """After row-parallel work: the sum of the ranks' partial results.

    Args:
        x: ``[R, ...]``, one addend of the result.
        tp: The TP ranks.

    Returns:
        ``[r, ...]`` under sequence parallelism, ``[R, ...]`` without.

    Raises:
        InputError: Rows that sequence parallelism cannot cut evenly.
    """
    if tp.size == 1:
        return x
    return _ReduceScatterGather.apply(x, tp) if tp.rows_are_cut else _AllReduceIdentity.apply(x, tp)


def scatter_rows(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """This rank's rows of what every TP rank holds in full; nothing without sequence parallelism.

    Args:
        x: ``[R, ...]``, the same on every TP rank.
        tp: The TP ranks.

    Returns:
        ``[r, ...]`` under sequence parallelism, ``x`` without.
    """
    return _SplitGather.apply(x, tp) if tp.rows_are_cut else x


def gather_rows(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """All rows, for work that every TP rank repeats; nothing without sequence parallelism.

    The gradient of the result must be the same on every TP rank. For work that differs between
    them (own columns, own heads) use :func:`enter`.

    Args:
        x: ``[r, ...]`` under sequence parallelism.
        tp: The TP ranks.

    Returns:
        ``[R, ...]``.
    """
    return _GatherSplit.apply(x, tp) if tp.rows_are_cut else x


class _IdentityAllReduce(torch.autograd.Function):
    """Nothing forward, all-reduce backward; the dual of ``_AllReduceIdentity``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return all_reduce(gradient, ctx.tp), None


class _AllReduceIdentity(torch.autograd.Function):
    """All-reduce forward, nothing backward; the dual of ``_IdentityAllReduce``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        return all_reduce(x, tp)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _GatherReduceScatter(torch.autograd.Function):
    """All-gather forward, reduce-scatter backward; the dual of ``_ReduceScatterGather``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.tp = tp
        return _all_gather(x, tp)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _reduce_scatter(gradient, ctx.tp), None


class _ReduceScatterGather(torch.autograd.Function):
    """Reduce-scatter forward, all-gather backward; the dual of ``_GatherReduceScatter``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.tp = tp
        return _reduce_scatter(x, tp)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _all_gather(gradient, ctx.tp), None


class _SplitGather(torch.autograd.Function):
    """Keep own rows forward, all-gather backward; the dual of ``_GatherSplit``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.tp = tp
        return _own_rows(x, tp)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _all_gather(gradient, ctx.tp), None


class _GatherSplit(torch.autograd.Function):
    """All-gather forward, keep own rows backward; the dual of ``_SplitGather``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.tp = tp
        return _all_gather(x, tp)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _own_rows(gradient, ctx.tp), None


def all_reduce(
    x: torch.Tensor, tp: TensorParallel, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> torch.Tensor:
    """A new tensor: ``x`` summed (or else reduced) over TP. Not differentiable by itself."""
    if tp.size == 1:
        return x
    reduced = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(reduced, op=operation, group=tp.group)
    return reduced


def _all_gather(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Rows of all TP ranks, in their order."""
    received = x.new_empty(tp.size * x.shape[0], *x.shape[1:])
    wait(_communicator(tp).start_all_gather(x.contiguous(), received))
    return received


def _reduce_scatter(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """This rank's rows, summed over TP in the order of the ranks."""
    _check_rows(x, tp)
    return _communicator(tp).reduce_scatter(x.contiguous().unflatten(0, (tp.size, -1)))


def _own_rows(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    _check_rows(x, tp)
    return x.unflatten(0, (tp.size, -1))[tp.rank].clone()


def _communicator(tp: TensorParallel) -> Communicator:
    assert tp.group is not None  # a size above 1 has a group: checked when it was made
    return Communicator(tp.group)


def _check_rows(x: torch.Tensor, tp: TensorParallel) -> None:
    if x.shape[0] % tp.size:
        raise InputError(
            "rows",
            x.shape[0],
            f"sequence parallelism over {tp.size} ranks needs a multiple of {tp.size}",
            "pad the pack (see packing.padding.padding_multiple)",
        )
