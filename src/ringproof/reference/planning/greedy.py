"""Divide a batch by looking at every group for every sequence, longest first.

A sequence goes to the first group, smallest sizes first, in which it does not make the microbatch
longer. Where there is none, it goes to the group (open already, or new) in which it makes the
microbatch longer by least. Two choices decide how long a microbatch gets: the size of the group
for the longest sequence, and whether other groups may take longer than that one. Both are tried for
every microbatch.

With squared length over size as the weight, the smallest size for the longest sequence and no
limit, this is the rule of upstream's packer (``next_hdp_group_packing_aware``). A planner that also
considers that plan is never worse than upstream.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import neg

import numpy as np

from ringproof.reference.planning.bounds import least_tokens, least_work
from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import Domain
from ringproof.reference.planning.pack import (
    FULL_ENOUGH,
    GOOD_ENOUGH,
    MOST_CHAINS,
    WEIGHT_OF_UNUSED,
    Packing,
    assembled,
    usable_chains,
)

_NO_LIMIT = 1 << 256
"""No sum of squared lengths comes near it."""


@dataclass(frozen=True)
class _Table:
    """The sequences of a batch for one chain of sizes, as lists: single entries are looked up.

    ``ticks``, ``weights`` and ``tokens`` are by size and sequence; ``weights`` is what the rule
    compares, ticks or squared lengths. ``lowest`` is the smallest size (an index) that holds each
    sequence. ``budget`` and ``places`` are the tokens per rank and sequences that a group may hold.
    """

    sizes: tuple[int, ...]
    ticks: list[list[int]]
    ticks_overhead: list[int]
    weights: list[list[int]]
    tokens: list[list[int]]
    overhead: list[int]
    lowest: list[int]
    budget: int
    places: int
    ranks: int


@dataclass(slots=True)
class _Group:
    """A group that is being filled, and its place among those of its size."""

    level: int
    index: int
    weight: int
    tokens: int = 0
    members: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Level:
    """The groups of one size, in heaps by what keeps the next sequence out of them.

    Sequences come longest first and the heaviest group never gets lighter. What is allowed only
    grows, so a group moves from ``full`` to ``heavy`` to ``ready``, and back only when it is given a
    sequence. The group to take is found without a look at the others.

    Attributes:
        groups: In the order they were opened.
        full: Tokens and index of groups without room for the sequences so far.
        heavy: Weight and index of groups that have room, but would get the heaviest.
        ready: Index of groups that have room and would not.
    """

    groups: list[_Group] = field(default_factory=list)
    full: list[tuple[int, int]] = field(default_factory=list)
    heavy: list[tuple[int, int]] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)

    def allow(self, room: int, below: int) -> None:
        """Move the groups with at most ``room`` tokens and a weight of at most ``below``."""
        full, heavy = self.full, self.heavy
        while full and full[0][0] <= room:
            index = heappop(full)[1]
            heappush(heavy, (self.groups[index].weight, index))
        while heavy and heavy[0][0] <= below:
            heappush(self.ready, heappop(heavy)[1])

    def take(self) -> _Group:
        """Take out the first group that is ready, or else the lightest that has room."""
        return self.groups[heappop(self.ready) if self.ready else heappop(self.heavy)[1]]


@dataclass(slots=True)
class _Filling:
    """A microbatch that is being filled: its groups by size, free ranks, and the heaviest group.

    Afterwards also the sequences that are left for later ones, whether it was given up, and its
    rating; 1 is perfect.
    """

    table: _Table
    levels: list[_Level]
    free: int
    heaviest: int = 0
    left: list[int] = field(default_factory=list)
    given_up: bool = False
    rating: float = 0.0

    @property
    def members(self) -> list[int]:
        """All sequences in it."""
        return [item for level in self.levels for group in level.groups for item in group.members]

    @property
    def ticks(self) -> int:
        """Time of the longest group, whatever the rule compares."""
        ticks, overhead = self.table.ticks, self.table.ticks_overhead
        return max(
            overhead[group.level] + sum(map(ticks[group.level].__getitem__, group.members))
            for level in self.levels
            for group in level.groups
        )


@dataclass(frozen=True)
class _Rating:
    """Rates fillings: time over the ideal, and the part of the budget that is not used.

    ``work`` and ``tokens`` are the least rank-ticks and rank-tokens of each sequence.
    """

    work: list[int]
    tokens: list[int]
    ranks: int
    budget: int
    overhead: int

    def __call__(self, filling: _Filling) -> float:
        """The rating; 1 is perfect."""
        if filling.given_up:
            return math.inf
        members = filling.members
        part = sum(map(self.tokens.__getitem__, members)) / self.budget
        missing = max(0.0, FULL_ENOUGH - part) if filling.left else 0.0
        spent = filling.heaviest + self.overhead
        work = sum(map(self.work.__getitem__, members))
        return spent / self._ideal(work) + WEIGHT_OF_UNUSED * missing

    def hopeless(self, work: int, rating: float) -> int:
        """The weight of a group beyond which no filling from a queue of that work is better."""
        return int(rating * self._ideal(work)) + 1 - self.overhead

    def _ideal(self, work: int) -> float:
        return max(work / self.ranks, 1.0)


def one_by_one(
    batch: Batch,
    domain: Domain,
    *,
    as_upstream: bool = False,
    even: bool = True,
    limit: int | None = None,
) -> tuple[Packing, ...]:
    """Fill one microbatch after the other from all that remains; keep the best filling of each.

    Takes time proportional to sequences times groups, for each microbatch.

    Args:
        batch: The sequences.
        domain: Ranks and limits.
        as_upstream: Follow upstream's rule instead; see above.
        even: Join groups so that all end together.
        limit: Give up, and return nothing, when the microbatches together will take that many
            ticks, the rest of the sequences at their cheapest.
    """
    usable = usable_chains(batch, domain, 0)[: 1 if as_upstream else MOST_CHAINS]
    tables = [_table(batch, domain, chain, as_upstream) for chain in usable]
    work = least_work(batch, domain)[batch.kind].tolist()
    least = least_tokens(batch, domain)[batch.kind].tolist()
    budget = domain.ranks * domain.max_tokens_per_rank
    rate = _Rating(work, least, domain.ranks, budget, batch.microbatch_overhead)
    queue = list(range(len(batch)))
    fillings: list[_Filling] = []
    spent = freed = 0
    rest = sum(work)
    while queue:
        if as_upstream:
            best = _fill(queue, tables[0], tables[0].lowest[queue[0]], _NO_LIMIT)
        else:
            found = [_best(queue, rest, table, rate) for table in tables]
            best = min(found, key=lambda filling: filling.rating)
        done = sum(map(work.__getitem__, best.members))
        rest -= done
        spent += batch.microbatch_overhead
        if best.free:  # groups will grow, and take less time
            freed += done
        else:
            spent += best.ticks
        if limit is not None and spent + (rest + freed) / domain.ranks >= limit:
            return ()
        fillings.append(best)
        queue = best.left
    return tuple(_packed(filling, batch, domain, even) for filling in fillings)


def _best(queue: Sequence[int], work: int, table: _Table, rate: _Rating) -> _Filling:
    """The best over sizes for the longest sequence; larger ones are tried while that helps.

    ``work`` is the least rank-ticks of the queue.
    """
    best: _Filling | None = None
    for level in range(table.lowest[queue[0]], len(table.sizes)):
        alone = table.weights[level][queue[0]] + table.overhead[level]
        hopeless = rate.hopeless(work, best.rating) if best else _NO_LIMIT
        better = _fill(queue, table, level, _NO_LIMIT, hopeless)
        better.rating = rate(better)
        if better.heaviest > alone:
            limited = _fill(queue, table, level, alone, hopeless)
            limited.rating = rate(limited)
            better = limited if limited.rating < better.rating else better
        if best is not None and better.rating >= best.rating:
            break
        best = better
        if best.rating <= GOOD_ENOUGH:
            break
    assert best is not None
    return best


def _table(batch: Batch, domain: Domain, chain: tuple[int, ...], as_upstream: bool) -> _Table:
    items = batch.items(np.arange(len(batch)), chain)
    ticks, ticks_overhead = items.ticks.tolist(), items.overhead.tolist()
    weights, overhead = ticks, ticks_overhead
    if as_upstream:  # squared length over size, times the largest size: whole numbers
        squares = [length * length for length in batch.lengths.tolist()]
        weights = [[square * (chain[-1] // size) for square in squares] for size in chain]
        overhead = [0] * len(chain)
    return _Table(
        chain,
        ticks,
        ticks_overhead,
        weights,
        items.tokens.tolist(),
        overhead,
        np.argmax(items.tokens <= domain.max_tokens_per_rank, axis=0).tolist(),
        domain.max_tokens_per_rank,
        domain.max_sequences or len(batch),
        domain.ranks,
    )


def _fill(
    queue: Sequence[int], table: _Table, level: int, limit: int, hopeless: int = _NO_LIMIT
) -> _Filling:
    """Fill a microbatch from a queue, longest first, and note the sequences that found no place.

    The first sequence gets a group of the size ``level`` (an index), and no group gets heavier than
    ``limit``. The filling is given up when a group is heavier than ``hopeless``.
    """
    now = _Filling(table, [_Level() for _ in table.sizes], table.ranks)
    _add(now, table, queue[0], _open(now, table, level))
    place = 1
    while place < len(queue):
        if now.heaviest > hopeless:
            now.given_up = True
            return now
        item = queue[place]
        group = _somewhere(now, table, item, limit)
        place += 1
        if group is None:
            after = max(place, bisect_left(queue, _first_that_may_fit(now, table, limit)))
            now.left += queue[place - 1 : after]
            place = after
        else:
            _add(now, table, item, group)
    return now


def _first_that_may_fit(now: _Filling, table: _Table, limit: int) -> int:
    """All longer sequences fit into no group: too many tokens, or too heavy for the limit."""
    found = len(table.lowest)
    for level, state in enumerate(now.levels):
        short, light = table.tokens[level], table.weights[level]
        if state.full:
            tokens = state.full[0][0]
            found = min(found, bisect_left(short, tokens - table.budget, key=neg))
        if state.heavy:
            weight = state.heavy[0][0]
            found = min(found, bisect_left(light, weight - limit, key=neg))
        if now.free >= table.sizes[level]:
            fits = bisect_left(short, -table.budget, key=neg)
            weight = table.overhead[level]
            found = min(found, max(fits, bisect_left(light, weight - limit, key=neg)))
    return found


def _open(now: _Filling, table: _Table, level: int) -> _Group:
    groups = now.levels[level].groups
    groups.append(_Group(level, len(groups), table.overhead[level]))
    now.free -= table.sizes[level]
    return groups[-1]


def _add(now: _Filling, table: _Table, item: int, group: _Group) -> None:
    level = group.level
    group.weight += table.weights[level][item]
    group.tokens += table.tokens[level][item]
    group.members.append(item)
    if group.weight > now.heaviest:
        now.heaviest = group.weight
    if len(group.members) < table.places:
        heappush(now.levels[level].full, (group.tokens, group.index))


def _somewhere(now: _Filling, table: _Table, item: int, limit: int) -> _Group | None:
    """Take out or open a group for a sequence, see the module; ``None`` where it fits nowhere."""
    best: int | None = None
    least, opened = limit + 1, False
    for level in range(table.lowest[item], len(table.sizes)):
        weight, state = table.weights[level][item], now.levels[level]
        below = now.heaviest - weight
        if state.groups:
            state.allow(table.budget - table.tokens[level][item], below)
            if state.ready:
                return state.take()
            if state.heavy and state.heavy[0][0] + weight < least:
                best, opened, least = level, False, state.heavy[0][0] + weight
        if now.free >= table.sizes[level]:
            if table.overhead[level] <= below:
                return _open(now, table, level)
            if table.overhead[level] + weight < least:
                best, opened, least = level, True, table.overhead[level] + weight
    if best is None:
        return None
    return _open(now, table, best) if opened else now.levels[best].take()


def _packed(filling: _Filling, batch: Batch, domain: Domain, even: bool) -> Packing:
    groups = [group for level in filling.levels for group in level.groups]
    members = np.array([item for group in groups for item in group.members])
    home = np.repeat(np.arange(len(groups)), [len(group.members) for group in groups])
    by_length = np.argsort(members, kind="stable")
    members, home = members[by_length], home[by_length]
    level = np.array([group.level for group in groups])
    items = batch.items(members, filling.table.sizes)
    return assembled(items, home, level, domain, even=even)
