"""Communication between tensor parallel (TP) ranks; each operation is listed with its dual.

Letters: ``R`` rows of a microbatch on this CP rank, ``r = R / TP`` of them under sequence
parallelism (SP), ``h`` columns. TP ranks share the same rows; without SP each of them holds all.

======================  ==================================  ==================================
operation               forward                             backward
======================  ==================================  ==================================
copy_to_region, SP      all-gather ``[r, h] -> [R, h]``     reduce-scatter
copy_to_region          nothing                             all-reduce
reduce_from_region, SP  reduce-scatter ``[R, h] -> [r, h]``  all-gather
reduce_from_region      all-reduce                          nothing
scatter_rows            keep own rows ``[R, h] -> [r, h]``  all-gather
======================  ==================================  ==================================

Every TP rank calls ``backward`` on the same loss. A replicated tensor (without SP: the residual
stream) has its whole gradient on every rank. The gradient of a tensor that is used for a rank's own
columns or heads is partial, until ``copy_to_region`` sums the parts.
"""

from __future__ import annotations

from collections.abc import Callable
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
        size: Number of ranks.
        rank: Index of this rank among them.
        sequence_parallel: Whether they divide the rows between matrix products.
    """

    group: dist.ProcessGroup | None = None
    size: int = 1
    rank: int = 0
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size or (self.size > 1 and self.group is None):
            problem = f"rank {self.rank} of {self.size} has no place in a group"
            raise InputError("tensor_parallel", f"{problem}; use TensorParallel.of(group)")

    @classmethod
    def of(
        cls, group: dist.ProcessGroup | None, *, sequence_parallel: bool = False
    ) -> TensorParallel:
        """Return the TP ranks of a process group."""
        if group is None:
            return cls()
        return cls(group, group.size(), group.rank(), sequence_parallel)

    @property
    def rows_are_cut(self) -> bool:
        """Whether a rank holds only some rows of the residual stream: SP over several ranks.

        A replicated parameter that acts on rows then gets only a part of its gradient on each.
        """
        return self.sequence_parallel and self.size > 1


def copy_to_region(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Return all rows for column-parallel work; the gradient is summed over TP.

    ``x`` is ``[r, ...]`` under sequence parallelism and ``[R, ...]`` without, the result is
    ``[R, ...]``.
    """
    if tp.size == 1:
        return x
    if tp.rows_are_cut:
        return _Dual.apply(x, tp, _all_gather, _reduce_scatter)
    return _Dual.apply(x, tp, _identity, all_reduce)


def reduce_from_region(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Sum the partial results of row-parallel work over the ranks.

    ``x`` is ``[R, ...]``, the result is ``[r, ...]`` under sequence parallelism and ``[R, ...]``
    without.

    Raises:
        InputError: Sequence parallelism cannot divide the rows evenly.
    """
    if tp.size == 1:
        return x
    if tp.rows_are_cut:
        return _Dual.apply(x, tp, _reduce_scatter, _all_gather)
    return _Dual.apply(x, tp, all_reduce, _identity)


def scatter_rows(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Return this rank's rows ``[r, ...]`` of a tensor ``[R, ...]`` that is equal on all TP ranks.

    Without sequence parallelism the result is ``x``.
    """
    return _Dual.apply(x, tp, _own_rows, _all_gather) if tp.rows_are_cut else x


Operation = Callable[[torch.Tensor, TensorParallel], torch.Tensor]


class _Dual(torch.autograd.Function):
    """One operation forward, its dual backward."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, tp: TensorParallel, operation: Operation, dual: Operation
    ) -> torch.Tensor:
        ctx.tp, ctx.dual = tp, dual
        return operation(x, tp)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return ctx.dual(gradient, ctx.tp), None, None, None


def _identity(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    return x.view_as(x)


def all_reduce(
    x: torch.Tensor, tp: TensorParallel, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> torch.Tensor:
    """Return a new tensor: ``x`` summed (or reduced otherwise) over TP. Not differentiable."""
    if tp.size == 1:
        return x
    reduced = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(reduced, op=operation, group=tp.group)
    return reduced


def _all_gather(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Return the rows of all TP ranks, in their order."""
    received = x.new_empty(tp.size * x.shape[0], *x.shape[1:])
    wait(_communicator(tp).start_all_gather(x.contiguous(), received))
    return received


def _reduce_scatter(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Return this rank's rows, summed over TP in the order of the ranks."""
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
        problem = f"sequence parallelism cannot divide {x.shape[0]} rows over {tp.size} ranks"
        remedy = "pad each sequence to a multiple of CP x TP rows"
        raise InputError("rows", f"{problem}; {remedy}")
