"""Runs a step's microbatches through the stages of a rank, with or without a pipeline.

:class:`LoopRunner` runs all stages on one rank. :class:`PipelineRunner` uses the schedules of
``torch.distributed.pipelining``, in which both ends of a message follow the same list of actions
(1F1B, arXiv 2104.04473). Both leave gradients in the parameters and return named losses, which
`gradients` sums over ranks afterwards.

Under Dynamic CP, microbatches differ from step to step. Their rows differ, so messages have a fixed
capacity (see :class:`PipelinedStage`). Their CP groups differ, so a keyword tensor passes the index
of the microbatch to each stage, which looks up the :class:`PackedBatch`. Their number differs, so
one schedule is created and kept for each number that occurs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    schedules,
)
from torch.nn import functional

from ringproof.errors import InputError
from ringproof.reference.graphs.bank import GraphBank
from ringproof.reference.model.batch import PackedBatch

Losses = dict[str, torch.Tensor]
"""This rank's part of each loss by name, detached and summed over microbatches."""

KEPT_SCHEDULES = 8
"""Each has buffers for all its microbatches, so a pipeline keeps only those it used last."""


@dataclass(frozen=True)
class Message:
    """Format of messages from one stage to the next, which are rows of the residual stream.

    Args:
        capacity: Rows of a message: the maximum of a microbatch on a rank.
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
            problem = f"{self.row_shards} TP ranks cannot share {batch.rows} rows evenly"
            raise InputError("batch", f"{problem}; pad packs to a multiple of the TP size")
        rows = batch.rows // self.row_shards
        if rows > self.capacity:
            problem = f"a pipeline message holds {self.capacity} rows, and a pack has {rows}"
            raise InputError("max_tokens_per_rank", f"{problem}; raise it to the longest pack")
        return rows

    def empty(self, rows: int, **options: Any) -> torch.Tensor:
        """Allocate a tensor of that many rows."""
        return torch.empty(
            rows, self.hidden, **{"dtype": self.dtype, "device": self.device, **options}
        )


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

    FSDP2 registers its hooks on tensors in tuples and dictionaries, not on those in a dataclass. A
    graph bank gives each microbatch its slot; it is ``None`` without graphs.
    """

    def __init__(self, stage: nn.Module, bank: GraphBank | None = None) -> None:
        super().__init__()
        self.stage, self.bank = stage, bank

    def forward(self, x: torch.Tensor, batch: PackedBatch) -> tuple[torch.Tensor, Losses]:
        """Map rows or tokens to hidden rows, or to the loss on the last stage."""
        output: Any = self.stage(x, batch if self.bank is None else self.bank.enter(batch))
        return output.value, dict(output.losses)

    def before_backward(self, last: bool) -> None:
        """Let FSDP reduce gradients only in the backward of a step's last microbatch."""
        if isinstance(self, FSDPModule):
            self.set_requires_gradient_sync(last)


class LoopRunner:
    """Runs all stages, in order, on this rank, one microbatch after the other.

    Both runners communicate over every CP group that a microbatch names, and with FSDP over the
    domain, whose ranks must have the same number of microbatches.
    """

    def __init__(self, calls: Sequence[StageCall]) -> None:
        self._calls, self._step_state = tuple(calls), StepState()

    def train(self, batches: Sequence[PackedBatch]) -> Losses:
        """Run forward and backward of every microbatch. Gradients are added in the parameters."""
        self._step_state.begin(batches)
        for index, batch in enumerate(batches):
            loss = self._forward(batch)
            for call in self._calls:
                call.before_backward(self._step_state.is_last(index))
            loss.backward()
        return self._step_state.losses

    def evaluate(self, batches: Sequence[PackedBatch]) -> Losses:
        """Run the forward only."""
        self._step_state.begin(batches)
        with torch.no_grad():
            for batch in batches:
                self._forward(batch)
        return self._step_state.losses

    def _forward(self, batch: PackedBatch) -> torch.Tensor:
        x = batch.tokens
        for call in self._calls:
            x, losses = call(x, batch)
            self._step_state.add(losses)
        return x


class PipelineRunner:
    """Runs the stages of one rank as part of a pipeline of several ranks.

    Stage ``i`` of this rank is chunk ``i * ranks + rank`` of the model. The schedule is 1F1B with
    one stage per rank, and interleaved 1F1B with several.

    Raises:
        InputError: This version of torch cannot run pipelines over the backend of the group.
    """

    def __init__(
        self, calls: Sequence[StageCall], message: Message, group: dist.ProcessGroup
    ) -> None:
        check_backend(dist.get_backend(group))
        self._calls, self._message, self._group = tuple(calls), message, group
        self._step_state = StepState()
        self._schedule = lru_cache(KEPT_SCHEDULES)(self._make_schedule)
        self._chunks = len(self._calls) * int(group.size())

    def train(self, batches: Sequence[PackedBatch]) -> Losses:
        """Run forward and backward of every microbatch. Gradients are added in the parameters.

        A collective over the pipeline, with the same number of microbatches on each rank.

        Raises:
            InputError: The number of microbatches does not suit an interleaved schedule, a stage
                refuses its input, or a microbatch has more rows than a message.
        """
        for batch in batches:  # all stages raise here, before one waits for another
            self._message.rows(batch)
        self._step_state.begin(batches)
        schedule = self._schedule(len(batches))
        numbers = torch.arange(len(batches))
        try:
            schedule.step(microbatch=numbers, target=numbers)
        except RuntimeError as error:  # torch wraps the exception of a stage
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from None
            raise
        return self._step_state.losses

    def evaluate(self, batches: Sequence[PackedBatch]) -> Losses:
        """Run the forward of one microbatch after the other, without padding of messages.

        A collective over the pipeline. Since there is one microbatch at a time, two ranks never
        wait to send to each other.
        """
        self._step_state.begin(batches)
        with torch.no_grad():
            for batch in batches:
                for chunk, call in self._own_chunks():
                    self._forward_one(chunk, call, batch)
        return self._step_state.losses

    def _forward_one(self, chunk: int, call: StageCall, batch: PackedBatch) -> None:
        x = batch.tokens
        if chunk > 0:
            x = self._message.empty(self._message.rows(batch))
            dist.recv(x, self._holder(chunk - 1), group=self._group)
        value, losses = call(x, batch)
        self._step_state.add(losses)
        if chunk < self._chunks - 1:
            dist.send(value.contiguous(), self._holder(chunk + 1), group=self._group)

    def _own_chunks(self) -> list[tuple[int, StageCall]]:
        size, rank = int(self._group.size()), int(self._group.rank())
        return [(local * size + rank, call) for local, call in enumerate(self._calls)]

    def _holder(self, chunk: int) -> int:
        """Return the global rank that holds a chunk."""
        return dist.get_global_rank(self._group, chunk % int(self._group.size()))

    def _make_schedule(self, microbatches: int) -> Any:
        """Create a schedule and its stages, which have buffers for each microbatch."""
        size = int(self._group.size())
        stages = [self._make_stage(chunk, call) for chunk, call in self._own_chunks()]
        if len(stages) > 1:
            rounds = max(1, microbatches // size)
            if microbatches % rounds:  # interleaved 1F1B runs in rounds of equal length
                problem = f"{microbatches} do not make {rounds} equal rounds of interleaved 1F1B"
                raise InputError("microbatches", f"{problem}; plan a multiple of {size}")
            return _unscaled(ScheduleInterleaved1F1B, stages, microbatches)
        # 1F1B needs a microbatch for each stage; with fewer, use GPipe.
        kind = Schedule1F1B if microbatches >= size else ScheduleGPipe
        return _unscaled(kind, stages[0], microbatches)

    def _make_stage(self, chunk: int, call: StageCall) -> PipelineStage:
        """Create a stage with given message shapes, so that torch does not run it to infer them."""
        first, last = chunk == 0, chunk == self._chunks - 1
        on_meta = {"device": "meta", "requires_grad": True}
        message = self._message.empty(self._message.capacity, **on_meta)
        loss = torch.empty(1, dtype=loss_dtype(self._message.dtype), **on_meta)
        stage = PipelinedStage(call, self._step_state, self._message, first=first, last=last)
        return PipelineStage(
            stage,
            chunk,
            self._chunks,
            self._message.device,
            input_args=() if first else (message,),
            output_args=(loss if last else message,),
            group=self._group,
        )


class PipelinedStage(nn.Module):
    """A stage that receives and sends messages of fixed capacity.

    A microbatch has fewer rows than a message. They are sliced from the received message and padded
    with zeros for the sent message. Autograd does the reverse, so the other rows affect no result
    and no gradient.

    The input of the first stage is tokens, and the output of the last stage is a loss.
    """

    def __init__(
        self, call: StageCall, step_state: StepState, message: Message, *, first: bool, last: bool
    ) -> None:
        super().__init__()
        self.call, self._step_state, self._message = call, step_state, message
        self._first, self._last = first, last

    def forward(self, *received: torch.Tensor, microbatch: torch.Tensor) -> torch.Tensor:
        """Run the microbatch of an index, ``[1]`` int64 on the CPU.

        Both messages are ``[capacity, hidden]``. The first stage receives none, and the last one
        returns the loss ``[1]``.
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
        last = self._step_state.is_last(index)
        if sent.requires_grad:
            sent.register_hook(lambda _: self.call.before_backward(last))
        return sent


def loss_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which losses are summed, at least float32."""
    return torch.promote_types(dtype, torch.float32)


def check_backend(backend: str) -> None:
    """Refuse a backend on which a pipeline would hang.

    Before torch 2.8, the schedules wait for only one of the messages that they send and receive
    together (pytorch/pytorch issue 132644, pull request 152938). NCCL coalesces the messages into
    one, gloo does not.

    Raises:
        InputError: A pipeline would hang.
    """
    if backend != "nccl" and not hasattr(schedules, "_wait_batch_p2p"):
        problem = f"pipelines of torch {torch.__version__} hang over {backend}"
        raise InputError("pp", f"{problem}; use torch 2.8 or newer, or GPUs")


def _unscaled(kind: Any, stages: Any, microbatches: int) -> Any:
    """Create a schedule that does not scale gradients, so that they are sums over microbatches.

    Later versions divide gradients by the number of microbatches by default. torch 2.6 never does,
    and has no argument for it.
    """
    unscaled = {"scale_grads": False} if "scale_grads" in signature(kind).parameters else {}
    return kind(stages, microbatches, loss_fn=lambda loss, _: loss.sum(), **unscaled)
