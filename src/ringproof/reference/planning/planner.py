"""Plan a batch: from lengths to microbatches, CP groups and the sequences in them.

Sequences of similar length share a microbatch. Their groups then need about the same time whatever
fits in, so that no rank waits when a microbatch ends for all ranks together, as under PP. Within a
microbatch, group sizes start as small as the lengths allow, because communication and small chunks
cost time, and grow where that shortens the microbatch. Under a pipeline, microbatches of equal
length are worth more than short ones; another division spreads long and short sequences over all of
them, and the simulated iteration decides.

Two algorithms find plans. One divides a batch into microbatches with vectors (`divide`), which
takes time in proportion to the microbatches; the other deals sequences one by one (`greedy`), which
takes time in proportion to the sequences and copes better with long tails. The faster one goes
first, and the other one is tried where the first plan is not near its bound. For small batches the
plan that upstream's rule gives is among the candidates, so no plan of those is longer than that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.bounds import fewest_microbatches, lower_bound
from ringproof.reference.planning.costs import Batch, CostModel, make_batch
from ringproof.reference.planning.divide import divide, split_to_multiple
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.greedy import one_by_one
from ringproof.reference.planning.groups import (
    Packing,
    assembled,
    dummies,
    placed,
    run_ahead,
    side_by_side,
)
from ringproof.reference.planning.pack import first_fit
from ringproof.reference.planning.plan import Microbatch, Plan, build_plan
from ringproof.reference.planning.simulate import Goal

MAX_SEQUENCES = 20_000_000
_SMALL = 1 << 16
"""Sequences times ranks up to which they are always dealt one by one, by upstream's rule, too."""
_TABLE = 1 << 19
"""Lengths times group sizes up to which larger batches are dealt one by one: the costs are in lists
of Python, which take 40 MB then."""
_SHORT = 512
"""Sequences per microbatch up to which dealing them one by one takes less time than dividing: a
division takes 0.5 to 2 ms for each microbatch, dealing 3 to 9 us for each sequence."""
_EFFORT = 8_192
"""Sequences that may be placed to compare ways of dealing, besides one per sequence."""
_FEW = 32
"""Up to so many sequences everything is tried: a few milliseconds."""
_QUICK = 256
"""Above `_FEW` and up to so many, only dealing one by one is tried: a division takes longer than
upstream's packer (`benchmarks/planner/versus_upstream.py`)."""
_MANY = 4_096
"""Above so many sequences only the first way of dividing is tried, and after dealing one by one a
division only where it can be expected to help."""
_PLENTY = 1 << 15
"""Above so many sequences of a long tail a division is fast again, 2 us for each: its vectors are
long."""
_CHEAP, _HUGE = 1_024, 1 << 17
"""Filling microbatches one after the other is tried up to the first number of sequences, where it
is fast, and above the second, where it is faster than dealing them one by one."""
_EXACT, _PERFECT, _CLOSE, _NEAR = 1.001, 1.003, 1.01, 1.04
"""Factors of the lower bound. A plan within the second is taken at once; up to `_MANY` sequences of
a long tail, only within the first. One within the third is taken where sequences were dealt one by
one and microbatches simply add up. For a plan within the fourth no further algorithm is tried."""
_EARNED = 0.12
"""Part of the time that a plan must save to have twice as many microbatches, and so in proportion:
every microbatch costs launches and memory that the cost model may not know."""


@dataclass(frozen=True)
class _Candidate:
    """Microbatches in the order they run, and the iteration in ticks."""

    makespan: float
    packings: tuple[Packing, ...]

    @property
    def idle(self) -> int:
        """Ranks without work, over all microbatches."""
        return sum(packing.idle for packing in self.packings)


def make_plan(
    lengths: Sequence[int] | IntArray,
    domain: Domain,
    model: CostModel,
    goal: Goal | None = None,
) -> Plan:
    """Plan one global batch; the same on every rank for the same arguments.

    Args:
        lengths: Tokens of each sequence, shape ``(n,)``.
        domain: Ranks, groups and budgets.
        model: What a sequence costs on a group.
        goal: ``sync`` without a pipeline when not given.

    Raises:
        InputError: No sequences, one that is empty, or one that no group can hold.
    """
    started = time.perf_counter()
    goal = goal or Goal()
    values = check_lengths(lengths, domain)
    batch = make_batch(values, domain, model)
    bound = lower_bound(batch, goal)
    best = _Search(batch, goal, bound).run()
    if goal.objective == "async":
        offsets, _ = run_ahead(best.packings, batch)
    else:
        offsets = [side_by_side(packing) for packing in best.packings]
    microbatches = [
        placed(packing, first, batch) for packing, first in zip(best.packings, offsets, strict=True)
    ]
    while len(microbatches) % domain.microbatch_multiple:  # fewer sequences than microbatches
        microbatches.append(Microbatch(tuple(dummies(0, domain.ranks, domain.cp_sizes))))
    times = (model.unit, best.makespan * batch.tick, bound * batch.tick)
    return build_plan(values, domain, microbatches, times=times, started=started)


def check_lengths(lengths: Sequence[int] | IntArray, domain: Domain) -> IntArray:
    """The lengths as integers.

    Raises:
        InputError: See `make_plan`; names the first bad sequence.
    """
    values = np.asarray(lengths)
    if values.ndim != 1 or not len(values):
        raise InputError("lengths", values.shape, "is not a list of lengths", "give at least one")
    if len(values) > MAX_SEQUENCES:
        problem = f"more than {MAX_SEQUENCES:,} sequences"
        raise InputError("lengths", f"{len(values):,}", problem, "plan one global batch at a time")
    if not np.issubdtype(values.dtype, np.integer):
        raise InputError("lengths", values.dtype, "are not whole numbers", "give tokens")
    values = values.astype(np.int64)
    small, large = np.flatnonzero(values < 1), np.flatnonzero(values > domain.longest)
    if len(small):
        first = int(small[0])
        raise InputError(f"lengths[{first}]", values[first], "is less than 1", "leave it out")
    if len(large):
        first = int(large[0])
        problem = f"longer than the {domain.longest:,} tokens that the largest group holds"
        remedy = "raise --max-tokens-per-rank or the domain, or cut the sequence"
        raise InputError(f"lengths[{first}]", values[first], problem, remedy)
    return values


class _Search:
    """Plans of a batch that were found so far; ``bound`` are ticks that no plan is shorter than."""

    def __init__(self, batch: Batch, goal: Goal, bound: float) -> None:
        self.batch, self.goal, self.bound = batch, goal, bound
        self.free = goal.pipeline.stages == 1 and communication_is_free(batch)
        self.found: list[_Candidate] = []

    def run(self) -> _Candidate:
        """The first plan that is good enough, or else the best."""
        if len(self.batch) * self.batch.domain.ranks <= _SMALL:
            return self._small()
        return self._large()

    @property
    def best(self) -> _Candidate:
        """The best of those that waste fewest ranks, and none that is longer than their first.

        A later one has to be shorter by enough for the microbatches that it has more.
        """
        idle = min(candidate.idle for candidate in self.found)
        first, *others = (candidate for candidate in self.found if candidate.idle == idle)
        best = first
        for one in others:
            more = len(one.packings) / len(best.packings) - 1
            shorter = one.makespan * (1 + _EARNED * more) < best.makespan
            best = one if shorter and one.makespan <= first.makespan else best
        return best

    def _good(self, factor: float) -> bool:
        """Whether the best one is within that factor of the bound and leaves no rank idle."""
        return self.best.makespan <= factor * self.bound and not self.best.idle

    def _add(self, packings: tuple[Packing, ...]) -> _Candidate:
        """Add a plan, with its iteration."""
        packings = split_to_multiple(packings, self.batch)
        if self.goal.objective == "async":
            makespan = float(run_ahead(packings, self.batch)[1].max())
        else:
            overhead = self.batch.microbatch_overhead
            times = [float(packing.ticks + overhead) for packing in packings]
            makespan = self.goal.pipeline.seconds(times)
        self.found.append(_Candidate(makespan, packings))
        return self.found[-1]

    def _divided(self, wanted: int) -> bool:
        """Divide the batch into so many microbatches; whether the result is as good as it gets."""
        multiple = self.batch.domain.microbatch_multiple
        rounded = -(-wanted // multiple) * multiple
        # Running ahead and pipelines gain from microbatches with all lengths.
        first = self.goal.plain or len(self.batch) > _MANY
        for spread in (False,) if first else (False, True):
            self._add(divide(self.batch, rounded, spread=spread))
            if self._good(_PERFECT):
                return True
        return False

    def _undivided(self) -> bool:
        """Where communication is free, try groups of all ranks; whether nothing is shorter."""
        if not self.free:
            return False
        domain, level = self.batch.domain, np.zeros(1, np.int64)
        packings = []
        for members in first_fit(self.batch.tokens[-1, self.batch.kind], domain):
            home = np.zeros(len(members), np.int64)
            one = assembled(self.batch, (domain.ranks,), level, np.array(members), home, even=False)
            packings.append(one)
        found = self._add(tuple(packings))
        return found.makespan <= _PERFECT * self.bound and not found.idle

    def _fill(self) -> None:
        """Fill microbatches one after the other; budgets may stay unused where that is faster."""
        self._add(divide(self.batch, fewest_microbatches(self.batch), full=True))

    def _small(self) -> _Candidate:
        """Deal a small batch one by one, by upstream's rule and by our own, before all else.

        Up to `_QUICK` sequences groups are not joined, and upstream's plan counts only if shorter.
        """
        batch, plain = self.batch, self.goal.plain
        quick, limit = plain and _FEW < len(batch) <= _QUICK, math.inf
        own = one_by_one(batch, even=not quick)
        if quick:
            limit = sum(packing.ticks + batch.microbatch_overhead for packing in own)
        upstream = one_by_one(batch, as_upstream=True, even=not quick, limit=limit)
        for packings in (upstream, own) if upstream else (own,):
            self._add(packings)
        if self._good(_CLOSE if plain and not self.free else _PERFECT):
            return self.best
        if (not quick or self.best.idle) and self._divided(len(self.best.packings)):
            return self.best
        if self._undivided():
            return self.found[-1]
        if len(batch) <= _FEW:
            self._fill()
        return self.best

    def _large(self) -> _Candidate:
        """Deal a large batch one by one if it has a long tail or few sequences; else divide it."""
        batch, count, fewest = self.batch, len(self.batch), fewest_microbatches(self.batch)
        able = batch.ticks.size <= _TABLE
        tail, short = long_tail(batch), count <= fewest * _SHORT
        dealt = able and self.goal.plain and (tail or short)
        if dealt:
            self._add(one_by_one(batch, effort=(2 * count if tail else count) + _EFFORT))
            enough = _CLOSE if short else _EXACT
            if count > _MANY:
                helps = tail and count > _PLENTY and self._good(_NEAR)
                enough = _CLOSE if helps else math.inf if tail else _NEAR
            if self._good(min(enough, _PERFECT) if self.free else enough):
                return self.best
        if self._divided(fewest):
            return self.best
        if self._undivided():
            return self.found[-1]
        if (count <= _CHEAP or count > _HUGE or not able) and not self._good(_NEAR):
            self._fill()
        if able and not dealt and not self._good(_NEAR):
            self._add(one_by_one(batch, effort=count + _EFFORT))
        return self.best


def long_tail(batch: Batch) -> bool:
    """Whether the longest sequence takes longer, at the smallest size that holds it, than all ranks
    need for the whole batch."""
    level = int(np.argmax(batch.tokens[:, 0] <= batch.domain.max_tokens_per_rank))
    alone = int(batch.ticks[level, 0]) + int(batch.overhead[level])
    return alone * batch.domain.ranks > batch.total_work


def communication_is_free(batch: Batch) -> bool:
    """Whether the cost measure has no price for communication, nor for groups and microbatches.

    Then no sequence takes fewer rank-ticks than in a group of all ranks. Such groups leave no rank
    waiting, so they are as fast as any plan.
    """
    domain = batch.domain
    if batch.overhead.any() or batch.microbatch_overhead or domain.cp_sizes[-1] != domain.ranks:
        return False
    rank_ticks = batch.ticks * np.array(domain.cp_sizes)[:, None]
    # Each entry was rounded to a whole tick, which its size multiplies.
    return bool((rank_ticks[-1] <= rank_ticks.min(axis=0) + 2 * domain.ranks).all())
