"""Simulate how long a plan takes, whoever made it.

The ranks of a group start together and end together. Under the objective ``sync`` a microbatch ends
for all ranks at once; under ``async`` each rank goes on to its next microbatch when its own group
has ended.

With pipeline stages, every stage does ``1 / (stages * virtual)`` of a microbatch at a time, a third
of it forward and two thirds backward. The order on each stage is Megatron-LM's: 1F1B, or with
virtual stages the interleaved order, which walks the microbatches in runs of ``stages``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ringproof.errors import InputError, shown
from ringproof.reference.planning.costs import CostModel
from ringproof.reference.planning.elementwise import columns
from ringproof.reference.planning.plan import Group, Microbatch, Plan

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
        for field_name, count in (("pp", self.stages), ("vpp", self.virtual)):
            if count < 1:
                raise InputError(field_name, f"{count} is less than 1; give 1 or more")
        if self.virtual > 1 and self.stages == 1:
            raise InputError("vpp", "virtual stages need a pipeline; give --pp 2 or more")

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
            problem = f"{shown(self.objective)} is unknown; choose sync or async"
            raise InputError("objective", problem)
        if self.objective == "async" and self.pipeline.stages > 1:
            problem = "ranks cannot run ahead of a pipeline; use sync with --pp"
            raise InputError("objective", problem)

    @property
    def plain(self) -> bool:
        """Whether the iteration is the sum of its microbatches."""
        return self.objective == "sync" and self.pipeline.stages == 1


class BusyInterval(NamedTuple):
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
    blocks: tuple[BusyInterval, ...]
    ends: tuple[float, ...]
    makespan: float

    @property
    def idle_fraction(self) -> float:
        """Part of all ranks' time in which they wait, for each other or for pipeline stages."""
        busy = sum(block.group.size * (block.end - block.start) for block in self.blocks)
        return 1 - busy / (self.ranks * self.makespan) if self.makespan > 0 else 0.0


def timeline(
    plan: Plan,
    model: CostModel,
    goal: Goal | None = None,
    *,
    computed: Sequence[int] | None = None,
) -> Timeline:
    """Simulate a finished plan in the unit of the cost model it was made with.

    ``computed`` are the lengths as the ranks compute them, where sequences are padded to more than
    their own. Without a goal it is ``sync`` without a pipeline.
    """
    lengths = plan.lengths if computed is None else computed
    return simulate(plan.microbatches, lengths, plan.ranks, model, goal or Goal())


def simulate(
    microbatches: Sequence[Microbatch],
    lengths: Sequence[int],
    ranks: int,
    model: CostModel,
    goal: Goal,
) -> Timeline:
    """Run the groups of each microbatch on their ranks.

    Under a pipeline the blocks are the times of one stage at work, ``1 / stages`` of each
    microbatch, without its waiting for other stages; only the makespan includes the waiting.

    Args:
        microbatches: In the order they run.
        lengths: Tokens of each sequence, as the ranks compute them.
        ranks: Size of the domain.
        model: The cost model.
        goal: The objective and the pipeline.
    """
    stages, overhead = goal.pipeline.stages, float(model.microbatch_overhead)
    together = goal.objective == "sync"  # then all ranks have the same clock
    clocks = [0.0] * (1 if together else ranks)
    times = _GroupTimes(lengths, model)
    blocks: list[BusyInterval] = []
    ends: list[float] = []
    longest: list[float] = []
    for number, microbatch in enumerate(microbatches):
        groups = [group for group in microbatch.groups if not group.dummy]
        spent = [times.of(group) for group in groups]
        longest.append(overhead + max(spent, default=0.0))
        begin = clocks[0]
        for group, time in zip(groups, spent, strict=True):
            start, end = begin, begin + time / stages
            if not together:
                first, after = group.first_rank, group.first_rank + group.size
                start = max(clocks[first:after])
                end = start + time / stages
                clocks[first:after] = [end] * group.size
            blocks.append(BusyInterval(number, group, start, end))
        if together:
            clocks[0] = begin + max(spent, default=0.0) / stages
        clocks = [clock + overhead / stages for clock in clocks]
        ends.append(max(clocks))
    makespan = ends[-1] if ends else 0.0
    if together:
        makespan = goal.pipeline.seconds(longest)
    return Timeline(ranks, tuple(blocks), tuple(ends), makespan)


def iteration(
    microbatches: Sequence[Microbatch],
    lengths: Sequence[int],
    ranks: int,
    model: CostModel,
    goal: Goal,
) -> float:
    """The makespan of `simulate`, without the intervals where ranks have one clock."""
    if goal.objective == "async":
        return simulate(microbatches, lengths, ranks, model, goal).makespan
    times, overhead = _GroupTimes(lengths, model), float(model.microbatch_overhead)
    spent = ([times.of(group) for group in one.groups if group.sequences] for one in microbatches)
    return goal.pipeline.seconds([overhead + max(groups, default=0.0) for groups in spent])


class _GroupTimes:
    """Times of groups; keeps the cost of each distinct length for each group size."""

    def __init__(self, lengths: Sequence[int], model: CostModel) -> None:
        self._lengths, self._model = list(map(int, lengths)), model
        self._distinct = sorted(set(self._lengths))
        self._costs: dict[int, dict[int, float]] = {}
        self._overhead: dict[int, float] = {}

    def of(self, group: Group) -> float:
        """Time of a group that has sequences."""
        size, lengths = group.size, self._lengths
        if size not in self._costs:
            (costs,) = columns(lambda length: [self._model.cost(length, size)], self._distinct)
            self._costs[size] = dict(zip(self._distinct, costs, strict=True))
            self._overhead[size] = self._model.group_overhead(size)
        cost = self._costs[size]
        # An exact sum: `sum` rounds differently from one version of Python to the next.
        total = math.fsum([cost[lengths[sequence]] for sequence in group.sequences])
        return total + self._overhead[size]


_Step = tuple[int, int]
"""A microbatch, and a place on its way: forward through the depths of the model, and back again."""


def _order(pipeline: Pipeline, stage: int, count: int) -> list[_Step]:
    """The steps of one stage, in the order in which they run."""
    stages, virtual = pipeline.stages, pipeline.virtual
    forwards, backwards = [], []
    for first in range(0, count, stages):  # runs of `stages` microbatches
        run = range(first, min(first + stages, count))
        for chunk in range(virtual):  # forward from the first chunk on, backward from the last
            forwards += [(microbatch, chunk * stages + stage) for microbatch in run]
            back = (virtual + chunk + 1) * stages - stage - 1
            backwards += [(microbatch, back) for microbatch in run]
    warmup = stages - stage - 1
    if virtual > 1:
        warmup = 2 * warmup + (virtual - 1) * stages
    warmup = min(warmup, len(forwards))
    steady = [step for pair in zip(forwards[warmup:], backwards, strict=False) for step in pair]
    return [*forwards[:warmup], *steady, *backwards[len(forwards) - warmup :]]


def _simulate_stages(pipeline: Pipeline, microbatches: Sequence[float]) -> float:
    """Run the next steps of every stage as far as their inputs are there, until all are done."""
    stages, parts = pipeline.stages, pipeline.stages * pipeline.virtual
    ends: dict[_Step, float] = {}
    clocks = [0.0] * stages
    queues = [deque(_order(pipeline, stage, len(microbatches))) for stage in range(stages)]
    able = deque(range(stages))
    while able:  # a stage runs until it waits; its steps may be the inputs of its neighbours
        stage, before = able.popleft(), len(ends)
        while queues[stage]:
            microbatch, place = queues[stage][0]
            ready = ends.get((microbatch, place - 1)) if place else 0.0
            if ready is None:
                break
            share = FORWARD_SHARE if place < parts else 1 - FORWARD_SHARE
            clocks[stage] = max(clocks[stage], ready) + microbatches[microbatch] * share / parts
            ends[queues[stage].popleft()] = clocks[stage]
        if len(ends) > before:
            neighbours = {(stage - 1) % stages, (stage + 1) % stages}
            able += [other for other in neighbours if other not in able]
    if any(queues):
        raise AssertionError("the stages wait for each other: the order of the steps is wrong")
    return max(clocks)
