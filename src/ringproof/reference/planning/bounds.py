"""What no plan can beat."""

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
        longest: The sequence that takes longest at its fastest size.
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

    A sequence of cost ``t(d)`` occupies ``d`` ranks for ``t(d)``, so at least
    ``min over d of d * t(d)`` rank-ticks; only sizes at which it fits the budget count.
    """
    fits = batch.tokens <= domain.max_tokens_per_rank
    fastest = np.where(fits, batch.ticks, np.iinfo(np.int64).max).min(axis=0)
    return Bounds(
        int(least_work(batch, domain)[batch.kind].sum()) / domain.ranks,
        int(fastest.max()),
        fewest_microbatches(batch, domain),
    )


def least_work(batch: Batch, domain: Domain) -> IntArray:
    """Per kind, the fewest rank-ticks that a sequence costs at a size that can hold it."""
    fits = batch.tokens <= domain.max_tokens_per_rank
    rank_ticks = batch.ticks * np.array(batch.sizes)[:, None]
    return np.where(fits, rank_ticks, np.iinfo(np.int64).max).min(axis=0)


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
