"""Which part of each parameter, and of its gradient, a rank has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ringproof.rehearsal.protocol.trace import AFTER


class Shards:
    """The parts of gradients that a rank has after their reduction.

    Args:
        wrapped: Model chunks as Megatron wraps them for data parallelism, whose buffers hold the
            gradients: each bucket is dealt to the ranks of its group in equal parts.
    """

    def __init__(self, wrapped: Iterable[Any]) -> None:
        # Addresses of each bucket, and of this rank's part of it.
        self._buckets: list[tuple[int, int, int, int]] = []
        ranks = set[int]()
        for model in wrapped:
            sharded = getattr(model.ddp_config, "use_distributed_optimizer", False)
            for buffer in _buffers(model) if sharded else ():
                group = buffer.data_parallel_group
                ranks |= set(torch.distributed.get_process_group_ranks(group))
                for bucket in buffer.buckets:
                    self._add(bucket.grad_data, group.rank(), group.size())
        self.ranks = tuple(sorted(ranks))

    def _add(self, data: torch.Tensor, rank: int, size: int) -> None:
        start, width = data.data_ptr(), data.numel() * data.element_size()
        own = start + width // size * rank
        self._buckets.append((start, start + width, own, own + width // size))

    def own(self, gradient: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the rank's part of a gradient, flat and maybe empty, and where it begins.

        Returns:
            The gradient itself and -1 where it is in no bucket.
        """
        if dealt(gradient):
            return _dealt_part(gradient)
        at, size = gradient.data_ptr(), gradient.element_size()
        end = at + gradient.numel() * size
        for first, last, start, stop in self._buckets:
            if first <= at < last:
                low, high = min(max(start, at), end) - at, max(min(stop, end), at) - at
                begin = low // size
                return gradient.reshape(-1)[begin : max(begin, high // size)], begin
        return gradient, -1


def dealt(value: torch.Tensor) -> bool:
    """Whether a tensor is one of which each rank has a part, as FSDP makes them."""
    return hasattr(value, "placements")


def freed(value: torch.Tensor) -> bool:
    """Whether a parameter has no content now, as FSDP leaves it outside of the forward."""
    return value.untyped_storage().nbytes() < value.numel() * value.element_size()


def _dealt_part(value: Any) -> tuple[torch.Tensor, int]:
    """Return the rows of a `DTensor` that the rank has, flat, which are those after the others'.

    Returns:
        An empty tensor where rows alone, over all of its ranks, are not what is dealt out.
    """
    held, (place, *others) = value.to_local(), value.placements
    if others or not place.is_shard(0):
        return held.new_empty(0), AFTER
    # How many rows the ranks before this one have differs between torch's FSDP and Megatron's.
    return held.reshape(-1), AFTER


def _buffers(model: Any) -> Iterable[Any]:
    found = getattr(model, "buffers", ())
    # A module of torch has a method of this name.
    return () if callable(found) else (*found, *getattr(model, "expert_parallel_buffers", ()))
