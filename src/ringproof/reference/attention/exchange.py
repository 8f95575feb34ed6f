"""Sequence shards to head shards and back: the all-to-all of Ulysses (arXiv 2309.14509).

Before: each rank holds its rows of all heads. After: each rank holds all rows, in ascending
order, of its share of the heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ringproof.reference.attention.communicator import Communicator, Pending, wait
from ringproof.reference.packing.partition import Segment, Span, segments_in_order


@dataclass(frozen=True)
class HeadExchange:
    """One group's exchange between sequence shards and head shards.

    Args:
        communicator: Of the exchanging group.
        segments: Runs of the group's shards in ascending order of position.
    """

    communicator: Communicator
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, communicator: Communicator, shards: Sequence[tuple[Span, ...]]) -> HeadExchange:
        """The exchange of a group whose ranks hold these positions."""
        return cls(communicator, segments_in_order(shards))

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
    """Head block ``i`` to rank ``i``; what arrives is put in ascending order of position."""
    size = exchange.communicator.size
    sends = [t.unflatten(2, (size, -1)).movedim(2, 0).contiguous() for t in tensors]
    return tuple(
        torch.cat([shards[s.shard][:, s.rows.rows] for s in exchange.segments], dim=1)
        for shards in _all_to_all(exchange.communicator, sends)
    )


def _gather_heads(
    exchange: HeadExchange, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Rows of rank ``i`` to rank ``i``; the head blocks that arrive stand side by side."""
    size = exchange.communicator.size
    sends = []
    for tensor in tensors:
        batch, rows, heads, width = tensor.shape
        send = tensor.new_empty(size, batch, rows // size, heads, width)
        position = 0
        for segment in exchange.segments:
            stop = position + len(segment.rows)
            send[segment.shard, :, segment.rows.rows] = tensor[:, position:stop]
            position = stop
        sends.append(send)
    return tuple(
        blocks.movedim(0, 2).flatten(2, 3) for blocks in _all_to_all(exchange.communicator, sends)
    )


def _all_to_all(communicator: Communicator, sends: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Exchange all tensors at once, so that they overlap with each other."""
    receives = [torch.empty_like(send) for send in sends]
    pending: list[Pending] = [
        communicator.start_all_to_all(send, receive)
        for send, receive in zip(sends, receives, strict=True)
    ]
    for transfer in pending:
        wait(transfer)
    return receives
