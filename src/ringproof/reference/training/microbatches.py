"""Forward and backward of a step's microbatches, with or without a pipeline.

Both forms have the same interface: they leave gradients in the parameters and return named losses.
`gradients` sums them over ranks afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from ringproof.errors import InputError
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.training.pipeline import PipelineRunner
from ringproof.reference.training.stages import (
    BeforeBackward,
    Losses,
    Message,
    StageCall,
    StepState,
)


class LoopRunner:
    """Runs all stages on this rank, one microbatch after the other.

    Args:
        calls: The stages in order, each a ``StageCall``.
        before_backward: For each stage, or empty; see ``BeforeBackward``.
    """

    def __init__(
        self, calls: Sequence[nn.Module], before_backward: Sequence[BeforeBackward] = ()
    ) -> None:
        self._calls = tuple(calls)
        self._before_backward = tuple(before_backward)
        self._step_state = StepState()

    def train(self, batches: Sequence[PackedBatch]) -> Losses:
        """Run forward and backward of every microbatch. Gradients are added in the parameters."""
        self._step_state.begin(batches)
        for index, batch in enumerate(batches):
            loss = self._forward(batch)
            for before_backward in self._before_backward:
                before_backward(self._step_state.is_last(index))
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


Runner = LoopRunner | PipelineRunner
"""What runs a rank's stages; made by :func:`make_runner`."""


def make_runner(
    calls: Sequence[StageCall | nn.Module],
    message: Message,
    pipeline_group: dist.ProcessGroup | None,
    before_backward: Sequence[BeforeBackward] = (),
) -> Runner:
    """Return a loop for one pipeline rank, and torch's schedules for several.

    Args:
        calls: This rank's stages in order, each a ``StageCall``; stage ``i`` is chunk
            ``i * ranks + rank`` of the model.
        message: Format of messages between pipeline ranks. The loop does not use it.
        pipeline_group: Pipeline ranks; ``None`` for one rank.
        before_backward: For each stage, or empty; see ``BeforeBackward``.
    """
    if pipeline_group is None or pipeline_group.size() == 1:
        return LoopRunner(calls, before_backward)
    return PipelineRunner(calls, message, pipeline_group, before_backward)


def run_microbatches(runner: Runner, batches: Sequence[PackedBatch]) -> Losses:
    """Run forward and backward of a step's microbatches.

    A collective over the pipeline and over every CP group that a microbatch names. With FSDP also
    over the domain, whose ranks must have the same number of microbatches.

    Returns:
        The parts of the losses that this rank's stages computed, by name, on the device; see
        `gradients.sum_losses`. Gradients are added to those in the parameters.

    Raises:
        InputError: There is no microbatch; see also :meth:`PipelineRunner.train`.
    """
    return runner.train(_some(batches))


def evaluate_microbatches(runner: Runner, batches: Sequence[PackedBatch]) -> Losses:
    """Compute the losses without gradients; otherwise like :func:`run_microbatches`."""
    return runner.evaluate(_some(batches))


def _some(batches: Sequence[PackedBatch]) -> Sequence[PackedBatch]:
    if not batches:
        raise InputError("batches", 0, "a step has no microbatch", "give every rank at least one")
    return batches
