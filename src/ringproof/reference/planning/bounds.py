"""Lower bounds on the iteration that hold for every plan of a batch."""

from __future__ import annotations

import numpy as np

from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.simulate import FORWARD_SHARE, Goal


def lower_bound(batch: Batch, domain: Domain, goal: Goal) -> float:
    """Ticks that no plan's iteration is shorter than.

    Without a pipeline this is the larger one of all work spread over all ranks, with every sequence
    at its cheapest size, and of the sequence that takes longest, alone in the group in which it is
    fastest; and the overhead of the fewest microbatches.

    With a pipeline each stage does its part of all work. Besides, the last stage waits for the
    first microbatch's forward, and the first for the last one's backward, each at least that of
    the shortest sequence. An interleaved run may end in empty microbatches, so there only the
    forward counts.
    """
    fits = batch.tokens <= domain.max_tokens_per_rank
    alone = np.where(fits, batch.ticks + batch.overhead[:, None], np.iinfo(np.int64).max)
    works = [int(least_work(batch, domain, lone=lone)[batch.kind].sum()) for lone in (False, True)]
    longest = max(max(works) / domain.ranks, float(alone.min(axis=0).max()))
    whole = longest + fewest_microbatches(batch, domain) * batch.microbatch_overhead
    stages = goal.pipeline.stages
    if stages == 1:
        return whole
    shortest = int(batch.ticks[:, batch.kind[-1]].min())
    waited = 1.0 if goal.pipeline.virtual == 1 else FORWARD_SHARE / goal.pipeline.virtual
    return whole / stages + (stages - 1) / stages * shortest * waited


def least_work(batch: Batch, domain: Domain, *, lone: bool = False) -> IntArray:
    """Per kind, the fewest rank-ticks that a sequence costs at a size that can hold it.

    To them belongs a part of what the group costs whatever is in it; see `_parts`.
    """
    return _least(batch, domain, batch.ticks + _parts(batch, domain, lone))


def _parts(batch: Batch, domain: Domain, lone: bool) -> IntArray:
    """Per size and kind, a part of the group's overhead; those of one group are never more than it.

    By tokens, because their sum is within the budget; or, `lone`, all of it for what takes more
    than half of the budget, because no group holds two of those.
    """
    budget = domain.max_tokens_per_rank
    if lone:
        return np.where(2 * batch.tokens > budget, batch.overhead[:, None], 0)
    share = np.minimum(batch.tokens, budget) / budget * (1 - 1e-9)  # rounded down
    return np.asarray(batch.overhead[:, None] * share, np.int64)


def least_tokens(batch: Batch, domain: Domain) -> IntArray:
    """Per kind, the fewest tokens (of all ranks together, padded) that a sequence takes up."""
    return _least(batch, domain, batch.tokens)


def _least(batch: Batch, domain: Domain, values: IntArray) -> IntArray:
    """Per kind, the smallest of values times ranks, over the sizes that can hold the sequence."""
    fits = batch.tokens <= domain.max_tokens_per_rank
    all_ranks = values * np.array(batch.sizes)[:, None]
    return np.where(fits, all_ranks, np.iinfo(np.int64).max).min(axis=0)


def fewest_microbatches(batch: Batch, domain: Domain) -> int:
    """Number of microbatches that every plan has at least, by tokens and by places in groups."""
    tokens = int(least_tokens(batch, domain)[batch.kind].sum())
    rows = domain.max_tokens_per_rank // domain.rank_multiple * domain.rank_multiple
    needed = max(1, -(-tokens // (domain.ranks * rows)))
    if domain.max_sequences is not None:
        places = domain.ranks // batch.sizes[0] * domain.max_sequences
        needed = max(needed, -(-len(batch) // places))
    return needed
