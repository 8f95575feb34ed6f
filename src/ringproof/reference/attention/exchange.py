"""Exchange of sequence shards for head shards: the all-to-all of Ulysses (arXiv 2309.14509).

Before: each rank holds its rows of all heads. After: each rank holds all rows, in ascending
order, of its share of the heads. Where rows come with tensors that say what they are (``masks``),
they may stay in the order of the ranks, which no pack changes, or be sorted by an index tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ringproof.reference.attention.communicator import Communicator, Pending, wait
from ringproof.reference.packing.partition import Span, TokenRun, segments_in_order


@dataclass(frozen=True)
class HeadExchange:
    """One group's exchange between sequence shards and head shards.

    Args:
        segments: Runs of the group's shards in ascending order of position.
        index: Sorts what the segments put together, and its inverse: ``[P * S]`` int64 each.
    """

    communicator: Communicator
    segments: tuple[TokenRun, ...]
    index: tuple[torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def of(cls, communicator: Communicator, shards: Sequence[tuple[Span, ...]]) -> HeadExchange:
        """The exchange of a group whose ranks hold these positions."""
        return cls(communicator, segments_in_order(shards))

    @classmethod
    def in_rank_order(
        cls,
        communicator: Communicator,
        rows: int,
        index: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> HeadExchange:
        """The exchange of a group whose ranks hold so many rows each; nothing is sorted by runs.

        Args:
            rows: ``S``, of each rank.
            index: Gathered row of each row in the wanted order, and the inverse.
        """
        runs = tuple(TokenRun(rank, Span(0, rows)) for rank in range(communicator.size))
        return cls(communicator, runs, index)

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
    gathered = (
        torch.cat([shards[s.shard][:, s.rows.index] for s in exchange.segments], dim=1)
        for shards in _all_to_all(exchange.communicator, sends)
    )
    if exchange.index is None:
        return tuple(gathered)
    return tuple(rows.index_select(1, exchange.index[0]) for rows in gathered)


def _gather_heads(
    exchange: HeadExchange, tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Rows of rank ``i`` to rank ``i``; the head blocks that arrive stand side by side."""
    size = exchange.communicator.size
    sends = []
    for tensor in tensors:
        if exchange.index is not None:
            tensor = tensor.index_select(1, exchange.index[1])
        batch, rows, heads, width = tensor.shape
        send = tensor.new_empty(size, batch, rows // size, heads, width)
        position = 0
        for segment in exchange.segments:
            stop = position + len(segment.rows)
            send[segment.shard, :, segment.rows.index] = tensor[:, position:stop]
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
