"""Which part of each gradient a distributed optimizer leaves on a rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


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
        at, size = gradient.data_ptr(), gradient.element_size()
        end = at + gradient.numel() * size
        for first, last, start, stop in self._buckets:
            if first <= at < last:
                low, high = min(max(start, at), end) - at, max(min(stop, end), at) - at
                begin = low // size
                return gradient.reshape(-1)[begin : max(begin, high // size)], begin
        return gradient, -1


def _buffers(model: Any) -> Iterable[Any]:
    found = getattr(model, "buffers", ())
    # A module of torch has a method of this name.
    return () if callable(found) else (*found, *getattr(model, "expert_parallel_buffers", ()))
