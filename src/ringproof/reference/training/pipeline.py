"""Microbatches through pipeline stages, by the schedules of ``torch.distributed.pipelining``.

torch decides the order of sends and receives: both ends of a message follow the same list of
actions (1F1B, arXiv 2104.04473).

Under Dynamic CP, microbatches differ from step to step. Their rows differ, so messages have a fixed
capacity (see :class:`PipelinedStage`). Their CP groups differ, so a keyword tensor passes the index
of the microbatch to each stage, which looks up the :class:`PackedBatch`. Their number differs, so
one schedule is created and kept for each number that occurs.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    schedules,
)

from ringproof.errors import InputError
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.training.stages import (
    BeforeBackward,
    Losses,
    Message,
    PipelinedStage,
    StepState,
    loss_dtype,
)

KEPT_SCHEDULES = 8
"""Each has buffers for all its microbatches, so the oldest goes when another number comes up."""


class PipelineRunner:
    """Runs the stages of one rank as part of a pipeline of several ranks.

    Stage ``i`` of this rank is chunk ``i * ranks + rank`` of the model. The schedule is 1F1B with
    one stage per rank, and interleaved 1F1B with several.

    Args:
        calls: This rank's stages in order, each a ``StageCall``.
        message: Format of messages between stages, the same on all ranks.
        group: Pipeline ranks, in order; two or more.
        before_backward: For each stage, or empty; see ``BeforeBackward``.

    Raises:
        InputError: This version of torch cannot run pipelines over the backend of the group.
    """

    def __init__(
        self,
        calls: Sequence[nn.Module],
        message: Message,
        group: dist.ProcessGroup,
        before_backward: Sequence[BeforeBackward] = (),
    ) -> None:
        check_backend(dist.get_backend(group))
        self._calls = tuple(calls)
        self._message = message
        self._group = group
        self._before_backward = tuple(before_backward) or (None,) * len(self._calls)
        self._step_state = StepState()
        self._schedules: dict[int, Any] = {}
        self._chunks = len(self._calls) * int(group.size())

    def train(self, batches: Sequence[PackedBatch]) -> Losses:
        """Run forward and backward of every microbatch. Gradients are added in the parameters.

        A collective over the pipeline, with the same number of microbatches on each rank.

        Args:
            batches: This rank's part of each microbatch.

            Returns:

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

    def _forward_one(self, chunk: int, call: nn.Module, batch: PackedBatch) -> None:
        x = batch.tokens
        if chunk > 0:
            x = self._message.empty(self._message.rows(batch))
            dist.recv(x, self._holder(chunk - 1), group=self._group)
        value, losses = call(x, batch)
        self._step_state.add(losses)
        if chunk < self._chunks - 1:
            dist.send(value.contiguous(), self._holder(chunk + 1), group=self._group)

    def _own_chunks(self) -> list[tuple[int, nn.Module]]:
        size, rank = int(self._group.size()), int(self._group.rank())
        return [(local * size + rank, call) for local, call in enumerate(self._calls)]

    def _holder(self, chunk: int) -> int:
        """Return the global rank that holds a chunk."""
        return dist.get_global_rank(self._group, chunk % int(self._group.size()))

    def _schedule(self, microbatches: int) -> Any:
        if microbatches not in self._schedules:
            if len(self._schedules) == KEPT_SCHEDULES:
                del self._schedules[next(iter(self._schedules))]
            self._schedules[microbatches] = self._make_schedule(microbatches)
        return self._schedules[microbatches]

    def _make_schedule(self, microbatches: int) -> Any:
        """Create a schedule and its stages, which have buffers for each microbatch."""
        size = int(self._group.size())
        stages = [
            self._make_stage(chunk, call, before)
            for (chunk, call), before in zip(self._own_chunks(), self._before_backward, strict=True)
        ]
        if len(stages) > 1:
            _check_interleaved(microbatches, size)
            return _unscaled(ScheduleInterleaved1F1B, stages, microbatches)
        # 1F1B needs a microbatch for each stage; with fewer, use GPipe.
        kind = Schedule1F1B if microbatches >= size else ScheduleGPipe
        return _unscaled(kind, stages[0], microbatches)

    def _make_stage(
        self, chunk: int, call: nn.Module, before_backward: BeforeBackward | None
    ) -> PipelineStage:
        """Create a stage with given message shapes, so that torch does not run it to infer them."""
        first, last = chunk == 0, chunk == self._chunks - 1
        message = torch.empty(
            self._message.capacity,
            self._message.hidden,
            dtype=self._message.dtype,
            device="meta",
            requires_grad=True,
        )
        loss = torch.empty(
            1, dtype=loss_dtype(self._message.dtype), device="meta", requires_grad=True
        )
        stage = PipelinedStage(
            call,
            self._step_state,
            self._message,
            first=first,
            last=last,
            before_backward=before_backward,
        )
        return PipelineStage(
            stage,
            chunk,
            self._chunks,
            self._message.device,
            input_args=() if first else (message,),
            output_args=(loss if last else message,),
            group=self._group,
        )


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
        raise InputError("pp", backend, problem, "use torch 2.8 or newer, or GPUs")


def _unscaled(kind: Any, stages: Any, microbatches: int) -> Any:
    """Create a schedule that does not scale gradients, so that they are sums over microbatches.

    Later versions divide gradients by the number of microbatches by default. torch 2.6 never does,
    and has no argument for it.
    """
    unscaled = {"scale_grads": False} if "scale_grads" in signature(kind).parameters else {}
    return kind(stages, microbatches, loss_fn=_pass_loss, **unscaled)


def _check_interleaved(microbatches: int, ranks: int) -> None:
    """Check that interleaved 1F1B can run in rounds of equal length."""
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        problem = f"do not make {rounds} equal rounds of interleaved 1F1B over {ranks} ranks"
        raise InputError("microbatches", microbatches, problem, f"plan a multiple of {ranks}")


def _pass_loss(loss: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Return the output of the last stage, which is the loss."""
    return loss.sum()
