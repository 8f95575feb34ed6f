"""When each group of a plan runs, for pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringproof.reference.planning.costs import CostModel, FloatArray
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.plan import Group, Plan
from ringproof.reference.planning.planner import Goal


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
        ranks: Of the domain.
        blocks: Groups with sequences, in the order they run; dummies take no time.
        ends: When each microbatch has ended on all ranks, its overhead included.
    """

    ranks: int
    blocks: tuple[Block, ...]
    ends: tuple[float, ...]

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
    """When the groups of a plan run.

    Under a pipeline these are the times of one stage at work, ``1 / stages`` of each microbatch,
    without its waiting for other stages.

    Args:
        plan: Made by the planner or a baseline.
        model: What it was made with.
        goal: ``sync`` without a pipeline when not given.
        computed: Lengths as the ranks compute them, where sequences are padded to more than
            their own.
    """
    goal = goal or Goal()
    lengths = np.asarray(plan.lengths if computed is None else computed, np.int64)
    stages = goal.pipeline.stages
    costs = {size: model.cost(lengths, size) for size in plan.cp_sizes}
    overheads = {size: model.group_overhead(size) for size in plan.cp_sizes}
    clocks = np.zeros(plan.ranks)
    blocks: list[Block] = []
    ends: list[float] = []
    for number, microbatch in enumerate(plan.microbatches):
        for group in microbatch.groups:
            if group.dummy:
                continue
            work = float(costs[group.size][list(group.sequences)].sum())
            here = clocks[group.first_rank : group.first_rank + group.size]
            start = float(here.max())
            here[:] = start + (work + overheads[group.size]) / stages
            blocks.append(Block(number, group, start, float(here[0])))
        _finish(clocks, model.microbatch_overhead / stages, together=goal.objective == "sync")
        ends.append(float(clocks.max()))
    return Timeline(plan.ranks, tuple(blocks), tuple(ends))


def _finish(clocks: FloatArray, overhead: float, *, together: bool) -> None:
    """End a microbatch: for all ranks together, or for each when it is done."""
    clocks += overhead
    if together:
        clocks[:] = clocks.max()
