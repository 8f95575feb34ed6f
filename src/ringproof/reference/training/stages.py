"""Model stages as the loop and the pipeline schedules call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ringproof.errors import InputError
from ringproof.reference.graphs.bank import GraphBank
from ringproof.reference.model.batch import PackedBatch

Losses = dict[str, torch.Tensor]
"""This rank's part of each loss by name, detached and summed over microbatches."""

BeforeBackward = Callable[[bool], None]
"""Called before a stage's backward of each microbatch, with true before the last one."""


@dataclass(frozen=True)
class Message:
    """Format of messages from one stage to the next, which are rows of the residual stream.

    Args:
        capacity: Rows of a message: the maximum of a microbatch on a rank.
        hidden: Hidden size.
        dtype: Dtype of activations.
        device: Device of the stages.
        row_shards: Number of parts into which a rank's rows are divided before a stage: the TP size
            under sequence parallelism, else 1.
    """

    capacity: int
    hidden: int
    dtype: torch.dtype
    device: torch.device
    row_shards: int = 1

    def rows(self, batch: PackedBatch) -> int:
        """Return the number of rows that a microbatch has without padding of the message.

        Raises:
            InputError: The row shards do not divide the rows, or the rows exceed the capacity.
        """
        if batch.rows % self.row_shards:
            problem = f"{self.row_shards} tensor parallel ranks cannot share the rows evenly"
            raise InputError("batch", batch.rows, problem, "pad packs to a multiple of their size")
        rows = batch.rows // self.row_shards
        if rows > self.capacity:
            problem = f"a pipeline message holds {self.capacity} rows"
            raise InputError("max_tokens_per_rank", rows, problem, "raise it to the longest pack")
        return rows

    def empty(self, rows: int) -> torch.Tensor:
        """Allocate a tensor that receives that many rows."""
        return torch.empty(rows, self.hidden, dtype=self.dtype, device=self.device)


class StepState:
    """Microbatches and losses of the running step, shared by the stages of a rank."""

    def __init__(self) -> None:
        self._batches: tuple[PackedBatch, ...] = ()
        self.losses: Losses = {}

    def begin(self, batches: Sequence[PackedBatch]) -> None:
        """Start a step with no losses."""
        self._batches = tuple(batches)
        self.losses = {}

    def batch(self, microbatch: int) -> PackedBatch:
        """Return the microbatch of an index."""
        return self._batches[microbatch]

    def is_last(self, microbatch: int) -> bool:
        """Return whether it is the last microbatch. Every schedule runs the backwards in order."""
        return microbatch == len(self._batches) - 1

    def add(self, losses: Mapping[str, torch.Tensor]) -> None:
        """Add a stage's losses of one microbatch on the device, without synchronization."""
        for name, value in losses.items():
            past = self.losses.get(name)
            self.losses[name] = value.detach() if past is None else past + value.detach()


class StageCall(nn.Module):
    """Calls a stage and returns tuple and dictionary instead of its ``StageOutput``.

    FSDP2 registers its hooks on tensors in tuples and dictionaries, not on those in a dataclass.

    Args:
        stage: The stage.
        bank: Graph bank, which gives each microbatch its slot; ``None`` without graphs.
    """

    def __init__(self, stage: nn.Module, bank: GraphBank | None = None) -> None:
        super().__init__()
        self.stage, self.bank = stage, bank

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> tuple[torch.Tensor, Losses]:
        """Map rows or tokens to hidden rows, or to the loss on the last stage."""
        output: Any = self.stage(x, batch if self.bank is None else self.bank.enter(batch))
        return output.value, dict(output.losses)


class PipelinedStage(nn.Module):
    """A stage that receives and sends messages of fixed capacity.

    A microbatch has fewer rows than a message. They are sliced from the received message and padded
    with zeros for the sent message. Autograd does the reverse, so the other rows affect no result
    and no gradient.

    Args:
        call: A :class:`StageCall`, sharded or not.
        step_state: State of the running step.
        message: Format of the messages.
        first: Whether the input is tokens instead of a message.
        last: Whether the output is a loss instead of a message.
        before_backward: See :data:`BeforeBackward`.
    """

    def __init__(
        self,
        call: nn.Module,
        step_state: StepState,
        message: Message,
        *,
        first: bool,
        last: bool,
        before_backward: BeforeBackward | None = None,
    ) -> None:
        super().__init__()
        self.call = call
        self._step_state = step_state
        self._message = message
        self._first = first
        self._last = last
        self._before_backward = before_backward

    def forward(self, *received: torch.Tensor, microbatch: torch.Tensor) -> torch.Tensor:
        """Run one microbatch.

        Args:
            received: Message ``[capacity, hidden]``; nothing on the first stage.
            microbatch: Index in the step, ``[1]`` int64 on the CPU.

        Returns:
            A message, or the loss ``[1]``.
        """
        index = int(microbatch)
        batch = self._step_state.batch(index)
        rows = self._message.rows(batch)
        value, losses = self.call(batch.tokens if self._first else received[0][:rows], batch)
        self._step_state.add(losses)
        if self._last:
            sent = value.reshape(1).to(loss_dtype(self._message.dtype), copy=True)
        else:
            sent = functional.pad(value, (0, 0, 0, self._message.capacity - rows))
        self._announce(sent, self._step_state.is_last(index))
        return sent

    def _announce(self, sent: torch.Tensor, last: bool) -> None:
        before_backward = self._before_backward
        if before_backward is not None and sent.requires_grad:

            def announce(_: torch.Tensor) -> None:
                before_backward(last)

            sent.register_hook(announce)


def loss_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which losses are summed, at least float32."""
    return torch.promote_types(dtype, torch.float32)
