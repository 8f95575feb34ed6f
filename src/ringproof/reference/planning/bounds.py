"""Lower bounds on the iteration that hold for every plan of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import Domain, IntArray


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of an iteration, in ticks; each holds for every plan of the batch.

    Attributes:
        work: Every sequence at its cheapest size, spread over all ranks without a gap.
        longest: The sequence that takes longest, alone in the group in which it is fastest.
        microbatches: The fewest: tokens over the budget of all ranks, sequences over their places.
    """

    work: float
    longest: int
    microbatches: int

    @property
    def ticks(self) -> float:
        """The best of them."""
        return max(self.work, float(self.longest))


def bounds(batch: Batch, domain: Domain) -> Bounds:
    """The bounds of a batch.

    A sequence of cost ``t(d)`` in a group of ``d`` ranks occupies them for ``t(d)`` and for its
    part of what the group costs whatever is in it (`_parts`); no size has fewer rank-ticks than the
    cheapest of those at which it fits the budget.
    """
    fits = batch.tokens <= domain.max_tokens_per_rank
    alone = np.where(fits, batch.ticks + batch.overhead[:, None], np.iinfo(np.int64).max)
    counted = (least_work(batch, domain, lone=lone)[batch.kind].sum() for lone in (False, True))
    return Bounds(
        max(int(work) for work in counted) / domain.ranks,
        int(alone.min(axis=0).max()),
        fewest_microbatches(batch, domain),
    )


def least_work(batch: Batch, domain: Domain, *, lone: bool = False) -> IntArray:
    """Per kind, the fewest rank-ticks that a sequence costs at a size that can hold it.

    Args:
        lone: How a group's own cost is divided; see `_parts`.
    """
    fits = batch.tokens <= domain.max_tokens_per_rank
    rank_ticks = batch.ticks + _parts(batch, domain, lone)
    rank_ticks *= np.array(batch.sizes)[:, None]
    return np.where(fits, rank_ticks, np.iinfo(np.int64).max).min(axis=0)


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
    fits = batch.tokens <= domain.max_tokens_per_rank
    all_ranks = batch.tokens * np.array(batch.sizes)[:, None]
    return np.where(fits, all_ranks, np.iinfo(np.int64).max).min(axis=0)


def fewest_microbatches(batch: Batch, domain: Domain) -> int:
    """No plan has fewer."""
    tokens = int(least_tokens(batch, domain)[batch.kind].sum())
    rows = domain.max_tokens_per_rank // domain.rank_multiple * domain.rank_multiple
    needed = max(1, -(-tokens // (domain.ranks * rows)))
    if domain.max_sequences is not None:
        places = domain.ranks // batch.sizes[0] * domain.max_sequences
        needed = max(needed, -(-len(batch) // places))
    return needed
