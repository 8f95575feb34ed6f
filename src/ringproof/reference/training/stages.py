"""A stage as the loop and the pipeline schedules call it: fixed messages, real rows inside."""

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
"""Name of a loss to this rank's share of it: detached, summed over microbatches."""

BeforeBackward = Callable[[bool], None]
"""Called before a stage's backward of each microbatch; true before that of the last one."""


@dataclass(frozen=True)
class Message:
    """What goes from one stage to the next: rows of the residual stream.

    Args:
        capacity: Rows of a message, the most that a microbatch has on a rank.
        hidden: Columns.
        dtype: Of activations.
        device: Where stages compute.
        row_shards: Parts into which a rank's rows are cut before they reach a stage: the TP size
            under sequence parallelism, else 1.
    """

    capacity: int
    hidden: int
    dtype: torch.dtype
    device: torch.device
    row_shards: int = 1

    def rows(self, batch: PackedBatch) -> int:
        """Rows that a microbatch really has.

        Raises:
            InputError: The row shards do not divide them, or they exceed the capacity.
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
        """A tensor to receive that many rows into."""
        return torch.empty(rows, self.hidden, dtype=self.dtype, device=self.device)


class StepState:
    """What the stages of a rank look up and add to while one step runs."""

    def __init__(self) -> None:
        self._batches: tuple[PackedBatch, ...] = ()
        self.losses: Losses = {}

    def begin(self, batches: Sequence[PackedBatch]) -> None:
        """Start a step; the last one's losses are forgotten."""
        self._batches = tuple(batches)
        self.losses = {}

    def batch(self, microbatch: int) -> PackedBatch:
        """The microbatch of that index."""
        return self._batches[microbatch]

    def is_last(self, microbatch: int) -> bool:
        """Whether it is the step's last one; every schedule runs backwards in their order."""
        return microbatch == len(self._batches) - 1

    def add(self, losses: Mapping[str, torch.Tensor]) -> None:
        """Add a stage's losses of one microbatch, on the device: nothing waits for a value."""
        for name, value in losses.items():
            past = self.losses.get(name)
            self.losses[name] = value.detach() if past is None else past + value.detach()


class StageCall(nn.Module):
    """Calls a stage and returns tuple and dictionary instead of its ``StageOutput``.

    FSDP2 finds the tensors whose gradients announce a backward in these, not in a dataclass.

    Args:
        stage: The stage.
        bank: Of its graphs, which then gives each microbatch its slot.
    """

    def __init__(self, stage: nn.Module, bank: GraphBank | None = None) -> None:
        super().__init__()
        self.stage, self.bank = stage, bank

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> tuple[torch.Tensor, Losses]:
        """Rows or tokens to hidden rows, or to the loss on the last stage."""
        output: Any = self.stage(x, batch if self.bank is None else self.bank.enter(batch))
        return output.value, dict(output.losses)


class PipelinedStage(nn.Module):
    """A stage between messages of fixed capacity.

    A microbatch has fewer rows than a message. They are cut from what arrives and padded with
    zeros for what leaves; autograd does the reverse, so the other rows reach no computation and
    no gradient, whatever they hold.

    Args:
        call: A :class:`StageCall`, sharded or not.
        step_state: Of the running step.
        message: Shape of what is received and sent.
        first: Whether it takes tokens instead of a message.
        last: Whether it returns a loss instead of a message.
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
        """One microbatch.

        Args:
            received: The message ``[capacity, hidden]``; nothing on the first stage.
            microbatch: ``[1]`` int64 on the CPU, the index in the step.

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
    """Losses are summed in at least single precision."""
    return torch.promote_types(dtype, torch.float32)
