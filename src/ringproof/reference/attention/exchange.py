"""Exchange of sequence shards for head shards: the all-to-all of Ulysses (arXiv 2309.14509).

Before: each rank holds its rows of all heads. After: each rank holds all rows of its share of the
heads. Rows are then put in ascending order of position. Only where they come with tensors that say
what they are (``masks``) may they stay in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ringproof.reference.attention.communicator import Communicator, wait
from ringproof.reference.packing.partition import Span


@dataclass(frozen=True, eq=False)
class HeadExchange:
    """One group's exchange between sequence shards and head shards.

    Args:
        order: Which gathered row each row is in the wanted order, and the inverse: ``[P * S]``
            int64 each. ``None`` leaves the rows in the order of the ranks.
    """

    communicator: Communicator
    order: tuple[torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def ascending(
        cls,
        communicator: Communicator,
        shards: Sequence[tuple[Span, ...]],
        device: torch.device | None,
    ) -> HeadExchange:
        """The exchange of a group whose ranks hold these positions, into ascending order."""
        spans = [torch.arange(span.start, span.stop) for shard in shards for span in shard]
        order = torch.cat(spans).argsort()
        return cls(communicator, (order.to(device), order.argsort().to(device)))

    def to_heads(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gather the sequence, scatter the heads: ``[B, S, H, D]`` to ``[B, P*S, H/P, D]``."""
        if self.communicator.size == 1:
            return tensors
        return _Exchange.apply(self, True, *tensors)

    def to_sequence(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gather the heads, scatter the sequence: ``[B, P*S, H/P, D]`` to ``[B, S, H, D]``."""
        if self.communicator.size == 1:
            return tensors
        return _Exchange.apply(self, False, *tensors)


class _Exchange(torch.autograd.Function):
    """All-to-all in one direction forward, in the other backward; each is the other's dual."""

    @staticmethod
    def forward(
        ctx: Any, exchange: HeadExchange, to_heads: bool, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """``to_heads``: gather the sequence and scatter the heads; otherwise the reverse."""
        ctx.exchange, ctx.to_heads = exchange, to_heads
        return _gather_sequence(exchange, tensors) if to_heads else _gather_heads(exchange, tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The other direction."""
        back = _gather_heads if ctx.to_heads else _gather_sequence
        return None, None, *back(ctx.exchange, gradients)


def _gather_sequence(
    exchange: HeadExchange, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Head block ``i`` to rank ``i``; what arrives are all rows."""
    size = exchange.communicator.size
    sends = [t.unflatten(2, (size, -1)).movedim(2, 0).contiguous() for t in tensors]
    shards = _all_to_all(exchange.communicator, sends)
    gathered = tuple(shard.movedim(0, 1).flatten(1, 2) for shard in shards)
    if exchange.order is None:
        return gathered
    return tuple(rows.index_select(1, exchange.order[0]) for rows in gathered)


def _gather_heads(
    exchange: HeadExchange, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Rows of rank ``i`` to rank ``i``; the head blocks that arrive stand side by side."""
    if exchange.order is not None:
        tensors = [tensor.index_select(1, exchange.order[1]) for tensor in tensors]
    size = exchange.communicator.size
    sends = [t.unflatten(1, (size, -1)).movedim(1, 0).contiguous() for t in tensors]
    blocks = _all_to_all(exchange.communicator, sends)
    return tuple(block.movedim(0, 2).flatten(2, 3) for block in blocks)


def _all_to_all(communicator: Communicator, sends: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Exchange all tensors at once, so that they overlap with each other."""
    receives = [torch.empty_like(send) for send in sends]
    for transfer in [*map(communicator.start_all_to_all, sends, receives)]:
        wait(transfer)
    return receives
