"""Simulate how long a plan takes, whoever made it.

The ranks of a group start together and end together. Under the objective ``sync`` a microbatch ends
for all ranks at once; under ``async`` each rank goes on to its next microbatch when its own group
has ended. Times may be seconds, or the integer ticks of `costs.Batch`.

With pipeline stages, every stage does ``1 / (stages * virtual)`` of a microbatch at a time, a third
of it forward and two thirds backward. The order on each stage is Megatron-LM's: 1F1B, or with
virtual stages the interleaved order, which walks the microbatches in runs of ``stages``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ringproof.errors import InputError
from ringproof.reference.planning.costs import Batch, CostModel
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.plan import Group, Microbatch, Plan

FORWARD_SHARE = 1 / 3
"""Backward does twice the multiplications of forward."""

Clocks = npt.NDArray[Any]
"""When each rank is free: integer ticks, or seconds. Shape ``(ranks,)``."""
Times = Sequence[Sequence[float]]
"""How long each group of each microbatch computes; 0 for a dummy."""


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
        return _simulate_stages(self, [*microbatches, *([0.0] * missing)])


@dataclass(frozen=True)
class Goal:
    """What makes a plan good.

    Attributes:
        objective: ``sync``: a microbatch ends for all ranks together. ``async``: only the ranks
            of a group wait for each other.
        pipeline: Stages each microbatch passes through; ``sync`` only.

    Raises:
        InputError: An unknown objective, or a pipeline whose ranks run ahead.
    """

    objective: Literal["sync", "async"] = "sync"
    pipeline: Pipeline = field(default_factory=Pipeline)

    def __post_init__(self) -> None:
        if self.objective not in ("sync", "async"):
            raise InputError("objective", self.objective, "is unknown", "choose sync or async")
        if self.objective == "async" and self.pipeline.stages > 1:
            problem = "ranks cannot run ahead of a pipeline"
            raise InputError("objective", self.objective, problem, "use sync with --pp")

    @property
    def plain(self) -> bool:
        """Whether the iteration is the sum of its microbatches."""
        return self.objective == "sync" and self.pipeline.stages == 1


@dataclass(frozen=True)
class Block:
    """A group at work: its ranks are busy from `start` to `end`, in the cost model's unit."""

    microbatch: int
    group: Group
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A plan in time.

    Attributes:
        ranks: Size of the domain.
        blocks: Groups with sequences, in the order they run; dummies take no time.
        ends: When each microbatch has ended on all ranks, its overhead included.
        makespan: Length of the iteration under the objective, pipeline stages included.
    """

    ranks: int
    blocks: tuple[Block, ...]
    ends: tuple[float, ...]
    makespan: float

    @property
    def busy_fraction(self) -> float:
        """Part of all ranks' time until the end in which they compute; the rest is idle."""
        if not self.ends or self.ends[-1] <= 0:
            return 1.0
        busy = sum(block.group.size * (block.end - block.start) for block in self.blocks)
        return busy / (self.ranks * self.ends[-1])


def timeline(
    plan: Plan, model: CostModel, goal: Goal | None = None, *, computed: IntArray | None = None
) -> Timeline:
    """Simulate a finished plan in the unit of the cost model.

    Under a pipeline the blocks are the times of one stage at work, ``1 / stages`` of each
    microbatch, without its waiting for other stages; only the makespan includes the waiting.

    Args:
        plan: Made by the planner or a baseline.
        model: The cost model the plan was made with.
        goal: ``sync`` without a pipeline when not given.
        computed: Lengths as the ranks compute them, where sequences are padded to more than
            their own.
    """
    lengths = np.asarray(plan.lengths if computed is None else computed, np.int64)
    times = group_times(plan.microbatches, lengths, model)
    overhead = float(model.microbatch_overhead)
    return simulate(plan.microbatches, times, plan.ranks, goal or Goal(), overhead)


def iteration_ticks(
    microbatches: Sequence[Microbatch], batch: Batch, ranks: int, goal: Goal
) -> float:
    """Ticks of the iteration under the objective; a dummy takes no time.

    Args:
        microbatches: In the order they run; all group sizes are among ``batch.sizes``.
        batch: The sequences as they are computed, with their costs; see `make_batch`.
        ranks: Size of the domain.
        goal: ``sync`` or ``async``, and the pipeline.
    """
    ticks = np.empty_like(batch.ticks[:, batch.kind])
    ticks[:, batch.order] = batch.ticks[:, batch.kind]

    def time(group: Group) -> int:
        level = batch.sizes.index(group.size)
        return int(ticks[level, list(group.sequences)].sum() + batch.overhead[level])

    times = [
        [0 if group.dummy else time(group) for group in microbatch.groups]
        for microbatch in microbatches
    ]
    return simulate(microbatches, times, ranks, goal, batch.microbatch_overhead).makespan


def group_times(microbatches: Sequence[Microbatch], lengths: IntArray, model: CostModel) -> Times:
    """Time of each group of each microbatch by a cost model; 0 for a dummy."""
    groups = (group for microbatch in microbatches for group in microbatch.groups)
    sizes = dict.fromkeys(group.size for group in groups if not group.dummy)
    costs = {size: model.cost(lengths, size) for size in sizes}
    return [
        [
            0.0
            if group.dummy
            else float(costs[group.size][list(group.sequences)].sum())
            + model.group_overhead(group.size)
            for group in microbatch.groups
        ]
        for microbatch in microbatches
    ]


def simulate(
    microbatches: Sequence[Microbatch], times: Times, ranks: int, goal: Goal, overhead: float
) -> Timeline:
    """Run the groups of each microbatch on their ranks.

    Args:
        microbatches: In the order they run.
        times: How long each group computes, all stages of a pipeline together.
        ranks: Size of the domain.
        goal: The objective and the pipeline.
        overhead: What each microbatch costs whatever is in it.
    """
    stages = goal.pipeline.stages
    clocks: Clocks = np.zeros(ranks, type(overhead))  # ticks stay exact integers
    blocks: list[Block] = []
    ends: list[float] = []
    for number, (microbatch, busy) in enumerate(zip(microbatches, times, strict=True)):
        for group, time in zip(microbatch.groups, busy, strict=True):
            if group.dummy:
                continue
            here = clocks[group.first_rank : group.first_rank + group.size]
            start = here.max()
            here[:] = start + (time if stages == 1 else time / stages)
            blocks.append(Block(number, group, float(start), float(here[0])))
        clocks += clocks.dtype.type(overhead if stages == 1 else overhead / stages)
        if goal.objective == "sync":
            clocks[:] = clocks.max()
        ends.append(float(clocks.max()))
    makespan = ends[-1] if ends else 0.0
    if goal.objective == "sync":
        makespan = goal.pipeline.seconds([float(max(busy) + overhead) for busy in times])
    return Timeline(ranks, tuple(blocks), tuple(ends), makespan)


def advance(clocks: Clocks, sizes: IntArray, offsets: IntArray, times: IntArray) -> Clocks:
    """The clocks after a microbatch in which only the ranks of a group wait for each other.

    The same as `simulate` with ``async`` and without overhead, for many groups at once.

    Args:
        clocks: When each rank is free, shape ``(ranks,)``.
        sizes: Number of ranks of each group.
        offsets: First rank of each group.
        times: Time of each group.
    """
    after = clocks.copy()
    for size in np.unique(sizes).tolist():
        here = np.flatnonzero(sizes == size)
        grid, blocks = after.reshape(-1, size), offsets[here] // size
        grid[blocks] = (grid[blocks].max(axis=1) + times[here])[:, None]
    return after


@dataclass(frozen=True)
class _Step:
    """A step of one stage: one chunk of one microbatch, forward or backward."""

    forward: bool
    microbatch: int
    chunk: int


_Ends = dict[tuple[bool, int, int], float]
"""When a step ended: forward or not, microbatch, depth in the model."""


def _order(pipeline: Pipeline, stage: int, count: int) -> list[_Step]:
    """The steps of one stage, in the order in which they run."""
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


def _simulate_stages(pipeline: Pipeline, microbatches: Sequence[float]) -> float:
    """Run the next steps of every stage as far as their inputs are there, until all are done."""
    count = len(microbatches)
    ends: _Ends = {}
    clocks = [0.0] * pipeline.stages
    queues = [deque(_order(pipeline, stage, count)) for stage in range(pipeline.stages)]
    while any(queues):
        before = len(ends)
        for stage, queue in enumerate(queues):
            clocks[stage] = _run(pipeline, queue, stage, (microbatches, clocks[stage], ends))
        if len(ends) == before:
            raise AssertionError("the stages wait for each other: the order of the steps is wrong")
    return max(clocks)


def _run(
    pipeline: Pipeline,
    queue: deque[_Step],
    stage: int,
    state: tuple[Sequence[float], float, _Ends],
) -> float:
    """Run one stage until it has to wait, note the ends of its steps, and return its clock."""
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
    """When the input of a step is there; ``None`` while it is not."""
    if step.forward:
        return 0.0 if depth == 0 else ends.get((True, step.microbatch, depth - 1))
    if depth == last:
        return ends.get((True, step.microbatch, depth))
    return ends.get((False, step.microbatch, depth + 1))
