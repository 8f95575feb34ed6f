"""Lower bounds on the iteration that hold for every plan of a batch."""

from __future__ import annotations

from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.simulate import FORWARD_SHARE, Goal


def lower_bound(batch: Batch, goal: Goal) -> float:
    """Cost that no plan's iteration is below.

    Without a pipeline this is the larger one of all work spread over all ranks, with every sequence
    at its cheapest size, and of the sequence that takes longest, alone in the group in which it is
    fastest; and the overhead of the fewest microbatches. To the work belongs a part of each group's
    overhead for each of its sequences: by tokens, or all of it for a sequence that takes more than
    half of the budget, because no group holds two of those.

    With a pipeline each stage does its part of all work. Besides, the last stage waits for the
    first microbatch's forward, and the first for the last one's backward, each at least that of
    the shortest sequence. An interleaved run may end in empty microbatches, so there only the
    forward counts.
    """
    work = max(batch.total_work, sum(map(batch.lone_work.__getitem__, batch.kind)))
    longest = max(work / batch.domain.ranks, float(max(batch.alone)))
    whole = longest + fewest_microbatches(batch) * batch.microbatch_overhead
    stages = goal.pipeline.stages
    if stages == 1:
        return whole
    shortest = min(row[-1] for row in batch.costs)
    waited = 1.0 if goal.pipeline.virtual == 1 else FORWARD_SHARE / goal.pipeline.virtual
    return whole / stages + (stages - 1) / stages * shortest * waited


def fewest_microbatches(batch: Batch) -> int:
    """Number of microbatches that every plan has at least, by tokens and by places in groups."""
    domain, tokens = batch.domain, sum(map(batch.space.__getitem__, batch.kind))
    needed = max(1, -(-tokens // (domain.ranks * domain.rows_per_rank)))
    if domain.max_sequences is not None:
        places = domain.ranks // domain.cp_sizes[0] * domain.max_sequences
        needed = max(needed, -(-len(batch) // places))
    return needed
