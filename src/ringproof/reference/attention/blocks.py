"""Sources of key/value blocks, and sinks of their gradients: a ring, or one gather.

Each source yields the blocks in the order of the step table and has the next transfer in flight
while the caller computes on the one just yielded. Each sink takes the gradients of the blocks in
the same order and returns the sum that belongs to this rank.

A block is one flat buffer, keys then values, so that each transfer is one message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from ringproof.reference.attention.communicator import Communicator, Pending, wait

KEY_VALUE_TAG, GRADIENT_TAG = 1, 2


@dataclass(frozen=True)
class BlockShape:
    """How keys ``[B, T, G, D]`` and values ``[B, T, G, V]`` lie in a flat buffer."""

    key: torch.Size
    value: torch.Size

    @classmethod
    def of(cls, key: torch.Tensor, value: torch.Tensor) -> BlockShape:
        """The shape of the block that these two make."""
        return cls(key.shape, value.shape)

    @staticmethod
    def pack(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """A new flat buffer that holds both."""
        return torch.cat([key.flatten(), value.flatten()])

    def split(self, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values as views of the buffer."""
        key, value = buffer.split([self.key.numel(), self.value.numel()])
        return key.view(self.key), value.view(self.value)


class GradientSink(Protocol):
    """Takes each block's gradients in step order; gives this rank's sum."""

    def add(self, gradient: torch.Tensor) -> None:
        """Hand over the flat gradient of the next block; the buffer now belongs to the sink."""
        ...

    def total(self) -> torch.Tensor:
        """The flat gradient of this rank's own block, summed over the group."""
        ...


class BlockExchange(Protocol):
    """One way to let every rank see every block."""

    def blocks(self, own: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the blocks of ranks ``r``, ``r-1``, …; each is valid until the next is asked."""
        ...

    def gradient_sink(self) -> GradientSink:
        """A sink for one backward pass."""
        ...


class LocalBlock:
    """One block, this rank's own; nothing moves."""

    def blocks(self, own: torch.Tensor) -> Iterator[torch.Tensor]:
        """See :class:`BlockExchange`."""
        yield own

    def gradient_sink(self) -> GradientSink:
        """See :class:`BlockExchange`."""
        return _ScatterSink(None)


@dataclass(frozen=True)
class Ring:
    """Blocks travel from neighbour to neighbour (``p2p``): two buffers, whatever the size.

    Args:
        communicator: Communicator of the ring, two ranks or more.
    """

    communicator: Communicator

    def blocks(self, own: torch.Tensor) -> Iterator[torch.Tensor]:
        """See :class:`BlockExchange`. ``own`` is overwritten once it has been sent."""
        current, spare = own, torch.empty_like(own)
        for _ in range(self.communicator.size - 1):
            pending = self.communicator.shift(current, spare, tag=KEY_VALUE_TAG)
            yield current
            wait(pending)
            current, spare = spare, current
        yield current

    def gradient_sink(self) -> GradientSink:
        """See :class:`BlockExchange`."""
        return _RingSink(self.communicator)


class _RingSink:
    """Sums that follow their blocks around the ring, one step behind, and end at home.

    Rank ``r`` handles block ``r - s`` in step ``s``; its predecessor handled it one step
    earlier. So each step adds to what arrived and passes it on, while the next step computes.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._pending: Pending = ()
        self._sent = self._received = torch.empty(0)  # the transfer's until it is waited for

    def add(self, gradient: torch.Tensor) -> None:
        if self._pending:
            gradient.add_(self.total())
        self._sent, self._received = gradient, torch.empty_like(gradient)
        self._pending = self._communicator.shift(self._sent, self._received, tag=GRADIENT_TAG)

    def total(self) -> torch.Tensor:
        wait(self._pending)
        return self._received


@dataclass(frozen=True)
class Gather:
    """All blocks arrive in one all-gather (``all_gather``): one buffer per rank of the group.

    The gather runs while the own block is worked on. Gradients go to their owners one by one.

    Args:
        communicator: Communicator of the group, two ranks or more.
    """

    communicator: Communicator

    def blocks(self, own: torch.Tensor) -> Iterator[torch.Tensor]:
        """See :class:`BlockExchange`."""
        size, rank = self.communicator.size, self.communicator.rank
        gathered = own.new_empty(size, own.numel())
        pending = self.communicator.start_all_gather(own, gathered)
        yield own
        wait(pending)
        for step in range(1, size):
            yield gathered[(rank - step) % size]

    def gradient_sink(self) -> GradientSink:
        """See :class:`BlockExchange`."""
        return _ScatterSink(self.communicator)


class _ScatterSink:
    """Sends each gradient to the owner of its block while the next one is computed.

    In step ``s`` rank ``r`` has the gradient of block ``r - s``, and rank ``r + s`` has one for
    block ``r``. So a reduce-scatter over ``N`` ranks is ``N - 1`` exchanges of one block, and no
    rank holds more than its sum and two blocks in flight. Of a local block there is one gradient,
    and no communicator.
    """

    def __init__(self, communicator: Communicator | None) -> None:
        self._communicator = communicator
        self._step = 0
        self._pending: Pending = ()
        self._sum = self._sent = self._received = torch.empty(0)

    def add(self, gradient: torch.Tensor) -> None:
        if self._communicator is None or self._step == 0:
            self._sum = gradient
        else:
            self._finish()
            self._sent, self._received = gradient, torch.empty_like(gradient)
            self._pending = self._communicator.shift(
                self._sent, self._received, tag=GRADIENT_TAG, distance=-self._step
            )
        self._step += 1

    def total(self) -> torch.Tensor:
        self._finish()
        return self._sum

    def _finish(self) -> None:
        """Wait for the last exchange, and add what arrived."""
        if self._pending:
            wait(self._pending)
            self._sum.add_(self._received)
            self._pending = ()
