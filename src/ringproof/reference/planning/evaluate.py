"""What a finished plan takes, whoever made it: the planner, a baseline, or upstream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.plan import Microbatch
from ringproof.reference.planning.planner import Goal


def iteration_ticks(
    microbatches: Sequence[Microbatch], batch: Batch, ranks: int, goal: Goal
) -> float:
    """Ticks of the iteration under the objective; an empty group takes no time.

    Args:
        microbatches: In the order they run; all group sizes are among ``batch.sizes``.
        batch: The sequences as they are computed, with their costs; see `make_batch`.
        ranks: Of the domain.
        goal: ``sync`` or ``async``, and the pipeline.
    """
    ticks = np.empty_like(batch.ticks[:, batch.kind])
    ticks[:, batch.order] = batch.ticks[:, batch.kind]
    clocks = np.zeros(ranks, np.int64)
    longest = []
    for microbatch in microbatches:
        times = _group_ticks(microbatch, batch, ticks)
        longest.append(float(max(times) + batch.microbatch_overhead))
        for group, time in zip(microbatch.groups, times, strict=True):
            if time:
                here = clocks[group.first_rank : group.first_rank + group.size]
                here[:] = here.max() + time
        clocks += batch.microbatch_overhead
    if goal.objective == "async":
        return float(clocks.max())
    return goal.pipeline.seconds(longest)


def _group_ticks(microbatch: Microbatch, batch: Batch, ticks: IntArray) -> list[int]:
    found = []
    for group in microbatch.groups:
        level = batch.sizes.index(group.size)
        work = int(ticks[level, list(group.sequences)].sum())
        found.append(0 if group.dummy else work + int(batch.overhead[level]))
    return found
