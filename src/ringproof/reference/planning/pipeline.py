"""How long an iteration takes when microbatches pass through pipeline stages.

Every stage does ``1/(stages * virtual)`` of a microbatch at a time, a third of it forward and two
thirds backward. The order on each stage is Megatron-LM's: 1F1B, or with virtual stages the
interleaved order, which walks the microbatches in runs of ``stages``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ringproof.errors import InputError

FORWARD_SHARE = 1 / 3
"""Backward does twice the multiplications of forward."""


@dataclass(frozen=True)
class Pipeline:
    """Pipeline stages, and the virtual stages on each.

    Raises:
        InputError: A number below 1, or virtual stages without a pipeline.
    """

    stages: int = 1
    virtual: int = 1

    def __post_init__(self) -> None:
        if self.stages < 1 or self.virtual < 1:
            raise InputError(
                "pp, vpp", f"{self.stages}, {self.virtual}", "less than 1", "give 1 or more"
            )
        if self.virtual > 1 and self.stages == 1:
            raise InputError("vpp", self.virtual, "needs a pipeline", "give --pp 2 or more")

    def seconds(self, microbatches: Sequence[float]) -> float:
        """Length of the iteration, in the unit of the given times of whole microbatches."""
        if self.stages == 1:
            return float(sum(microbatches))
        # The interleaved order walks runs of `stages` microbatches: the last one is filled up.
        missing = -len(microbatches) % self.stages if self.virtual > 1 else 0
        return _simulate(self, [*microbatches, *([0.0] * missing)])


@dataclass(frozen=True)
class _Step:
    forward: bool
    microbatch: int
    chunk: int


_Ends = dict[tuple[bool, int, int], float]
"""When a step ended: forward or not, microbatch, depth in the model."""


def _order(pipeline: Pipeline, stage: int, count: int) -> list[_Step]:
    """The steps of one stage."""
    stages, virtual = pipeline.stages, pipeline.virtual
    forwards = [
        _Step(True, *_place(index, stages, virtual, count)) for index in range(count * virtual)
    ]
    backwards = [_Step(False, step.microbatch, virtual - 1 - step.chunk) for step in forwards]
    warmup = stages - stage - 1
    if virtual > 1:
        warmup = 2 * warmup + (virtual - 1) * stages
    warmup = min(warmup, len(forwards))
    steady = [step for pair in zip(forwards[warmup:], backwards, strict=False) for step in pair]
    done = len(forwards) - warmup
    return [*forwards[:warmup], *steady, *backwards[done:]]


def _place(index: int, stages: int, virtual: int, count: int) -> tuple[int, int]:
    """Microbatch and chunk of the ``index``-th forward step: runs of ``stages`` microbatches."""
    run = stages * virtual
    first = index // run * stages
    width = min(stages, count - first)
    inside = index - first * virtual
    return first + inside % width, inside // width


def _simulate(pipeline: Pipeline, microbatches: Sequence[float]) -> float:
    """Every stage runs its next steps as far as their inputs are there, until all are done."""
    count = len(microbatches)
    ends: _Ends = {}
    clocks = [0.0] * pipeline.stages
    queues = [deque(_order(pipeline, stage, count)) for stage in range(pipeline.stages)]
    while any(queues):
        before = len(ends)
        for stage, queue in enumerate(queues):
            clocks[stage] = _run(pipeline, queue, stage, (microbatches, clocks[stage], ends))
        if len(ends) == before:
            raise AssertionError("stages wait for each other: the order is none")
    return max(clocks)


def _run(
    pipeline: Pipeline,
    queue: deque[_Step],
    stage: int,
    state: tuple[Sequence[float], float, _Ends],
) -> float:
    """Run one stage until it has to wait; its clock then. Ends of steps are noted in the state."""
    microbatches, clock, ends = state
    parts = pipeline.stages * pipeline.virtual
    while queue:
        step = queue[0]
        depth = step.chunk * pipeline.stages + stage
        ready = _ready(ends, step, depth, parts - 1)
        if ready is None:
            break
        queue.popleft()
        share = FORWARD_SHARE if step.forward else 1 - FORWARD_SHARE
        clock = max(clock, ready) + microbatches[step.microbatch] * share / parts
        ends[step.forward, step.microbatch, depth] = clock
    return clock


def _ready(ends: _Ends, step: _Step, depth: int, last: int) -> float | None:
    """When a step's input is there; ``None`` while it is not."""
    if step.forward:
        return 0.0 if depth == 0 else ends.get((True, step.microbatch, depth - 1))
    if depth == last:
        return ends.get((True, step.microbatch, depth))
    return ends.get((False, step.microbatch, depth + 1))
