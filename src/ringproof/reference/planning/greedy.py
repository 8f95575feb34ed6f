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
from dataclasses import dataclass, field, replace
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
_AS_GOOD, _WELL = 1.0005, 1.005
"""A microbatch filled in the way of an earlier one may be rated worse than that by the first factor
if the earlier one was slower than its work by at most the second: after a bad one, better ones may
follow."""


@dataclass(frozen=True)
class _Table:
    """The kinds of a batch for one chain of sizes, as lists: single entries are looked up.

    Attributes:
        sizes: The chain.
        kind: Kind of each sequence; the other entries are by kind, longest first.
        first: First sequence of each kind, then the number of sequences.
        weights, tokens: By size and kind; ``weights`` is what the rule compares, ticks or squared
            lengths.
        overhead: Weight of a group whatever is in it, by size.
        lowest: The smallest size (an index) that holds a sequence.
        work, least: The least rank-ticks and rank-tokens of a sequence, over all sizes.
        budget, places: Tokens per rank and sequences that a group may hold.
        ranks: Number of ranks of the domain.
    """

    sizes: tuple[int, ...]
    kind: list[int]
    first: list[int]
    weights: list[list[int]]
    tokens: list[list[int]]
    overhead: list[int]
    lowest: list[int]
    work: list[int]
    least: list[int]
    budget: int
    places: int
    ranks: int


class _Queue:
    """The sequences that no microbatch has yet, longest first.

    Neither to remove some nor to find the next takes time in proportion to all that are left.

    Attributes:
        count: How many there are.
        work: Their least rank-ticks.
        effort: How many sequences may still be placed to compare ways.
    """

    def __init__(self, count: int, work: int, effort: int) -> None:
        self._next = list(range(count + 1))  # itself while there, else one that comes later
        self.count, self.work, self.effort = count, work, effort

    def following(self, place: int) -> int:
        """The first that is left at or after a place; the number of all sequences if none is."""
        following = self._next
        found = following[place]
        while found != following[found]:
            found = following[found]
        while place < found:  # the next look takes one step
            following[place], place = found, following[place]
        return found

    def remove(self, filling: _Filling) -> None:
        """Take out what a microbatch has."""
        for item in filling.members:
            self._next[item] = item + 1
        self.count -= filling.count
        self.work -= filling.work


@dataclass(slots=True)
class _Group:
    """A group that is being filled, the index of its size, and its own among those of that size."""

    level: int
    index: int
    weight: int
    tokens: int
    members: list[int]


@dataclass(slots=True)
class _Level:
    """The groups of one size, in heaps by what keeps the next sequence out of them.

    Sequences come longest first and the heaviest group never gets lighter. What is allowed only
    grows, so a group moves from ``full`` to ``heavy`` to ``ready``, and back only when it is given
    a sequence. The group to take is found without a look at the others.

    Attributes:
        index: Index of the size in the chain.
        size, overhead, weights, tokens: See `_Table`, of this size alone.
        groups: In the order they were opened.
        full: Tokens and index of groups without room for the sequences so far.
        heavy: Weight and index of groups that have room, but would get the heaviest.
        ready: Index of groups that have room and would not.
    """

    index: int
    size: int
    overhead: int
    weights: list[int]
    tokens: list[int]
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


@dataclass(slots=True)
class _Filling:
    """A microbatch that is being filled: its groups by size, free ranks, and the heaviest group.

    ``looked_at`` are the sizes to look at for sequences that need at least the size ``lowest``
    (an index), without the largest if they have neither groups nor ranks. Afterwards also how many
    sequences the microbatch has, their least rank-ticks and rank-tokens, and whether it was given
    up. The rating is its time over the ideal, plus what is missing to a full one; 1 is perfect. The
    slowness leaves out what the microbatch itself costs.
    """

    table: _Table
    levels: list[_Level]
    free: int
    lowest: int
    looked_at: list[_Level]
    heaviest: int = 0
    given_up: bool = False
    members: list[int] = field(default_factory=list)
    work: int = 0
    tokens: int = 0
    slowness: float = math.inf
    rating: float = math.inf

    @property
    def count(self) -> int:
        """Number of sequences in it."""
        return len(self.members)


@dataclass(frozen=True)
class _Way:
    """A way to fill a microbatch.

    Attributes:
        table: Index of the chain of sizes.
        level: Size (an index) of the group for the longest sequence.
        limited: Whether no other group gets heavier than that one.
    """

    table: int
    level: int
    limited: bool


@dataclass(frozen=True)
class _Dealer:
    """Fills one microbatch after the other from a queue.

    A filling is rated by its time over the ideal, and by the part of the budget (of all ranks'
    tokens) that it does not use.
    """

    tables: list[_Table]
    ranks: int
    budget: int
    microbatch_overhead: int

    def next(self, queue: _Queue, before: tuple[_Way, _Filling] | None) -> tuple[_Way, _Filling]:
        """The next microbatch, and the way in which it was filled.

        The way of the microbatch before it is taken if the result is as good; else the best way.
        """
        known: dict[_Way, _Filling] = {}
        if before is not None:
            way, measure = before
            if way.level >= self.tables[way.table].lowest[self._longest(queue, way.table)]:
                known[way] = found = self._filled(queue, way, math.inf)
                as_good = found.slowness <= GOOD_ENOUGH or (
                    measure.slowness <= _WELL and found.rating <= measure.rating * _AS_GOOD
                )
                same = found.rating == measure.rating  # equal sequences in equal places
                if (as_good or same) and found.count < queue.count:
                    return way, found
        best = [self._best_of(queue, table, known) for table in range(len(self.tables))]
        return min(best, key=lambda pair: pair[1].rating)

    def _best_of(
        self, queue: _Queue, table: int, known: dict[_Way, _Filling]
    ) -> tuple[_Way, _Filling]:
        """The best over sizes for the longest sequence.

        The first one tried is the smallest at which that sequence does not take longer than all
        ranks need for the whole queue. Larger ones are tried while that helps, then smaller ones.
        """
        rows, longest = self.tables[table], self._longest(queue, table)
        ideal, smallest = self._ideal(queue.work), rows.lowest[longest]
        alone = [row[longest] + over for row, over in zip(rows.weights, rows.overhead, strict=True)]
        sizes = range(smallest, len(alone))
        start = next((level for level in sizes if alone[level] <= ideal), None)
        start = min(sizes, key=alone.__getitem__) if start is None else start
        best: tuple[_Way, _Filling] | None = None
        for levels in (range(start, len(alone)), range(start - 1, smallest - 1, -1)):
            for level in levels:
                if best and (alone[level] >= best[1].rating * ideal or queue.effort < 0):
                    break
                way = _Way(table, level, False)
                found = self._better_of(queue, way, alone[level], best and best[1], known)
                if best and found[1].rating >= best[1].rating:
                    break
                best = found
                if best[1].slowness <= GOOD_ENOUGH:
                    return best
        assert best is not None
        return best

    def _better_of(
        self,
        queue: _Queue,
        way: _Way,
        alone: int,
        best: _Filling | None,
        known: dict[_Way, _Filling],
    ) -> tuple[_Way, _Filling]:
        """The better one of both ways with one size for the longest sequence.

        With a limit some sequences are left, which is no use where one microbatch has room for all.
        """
        to_beat = best.rating if best else math.inf
        first = known.get(way) or self._filled(queue, way, to_beat)
        everything = queue.count in (first.count, best.count if best else 0)
        done = first.slowness <= GOOD_ENOUGH or (queue.effort < 0 and not first.given_up)
        if first.heaviest <= alone or everything or done:
            return way, first
        other = replace(way, limited=True)
        second = known.get(other) or self._filled(queue, other, to_beat)
        return (other, second) if second.rating < first.rating else (way, first)

    def _longest(self, queue: _Queue, table: int) -> int:
        """Kind of the longest sequence that is left."""
        return self.tables[table].kind[queue.following(0)]

    def _filled(self, queue: _Queue, way: _Way, to_beat: float) -> _Filling:
        """A rated filling; given up early where it cannot be rated better than ``to_beat``."""
        table, hopeless, limit = self.tables[way.table], _NO_LIMIT, _NO_LIMIT
        if way.limited:
            longest = self._longest(queue, way.table)
            limit = table.weights[way.level][longest] + table.overhead[way.level]
        if to_beat < math.inf:
            hopeless = int(to_beat * self._ideal(queue.work)) + 1 - self.microbatch_overhead
        filling = _fill(queue, table, way.level, limit, hopeless)
        queue.effort -= filling.count
        if not filling.given_up:
            part, ideal = filling.tokens / self.budget, self._ideal(filling.work)
            missing = max(0.0, FULL_ENOUGH - part) if filling.count < queue.count else 0.0
            filling.slowness = filling.heaviest / ideal + WEIGHT_OF_UNUSED * missing
            filling.rating = filling.slowness + self.microbatch_overhead / ideal
        return filling

    def _ideal(self, work: int) -> float:
        return max(work / self.ranks, 1.0)


def one_by_one(
    batch: Batch,
    domain: Domain,
    *,
    as_upstream: bool = False,
    even: bool = True,
    limit: int | None = None,
    effort: int | None = None,
) -> tuple[Packing, ...]:
    """Fill one microbatch after the other from all that remains; keep the best filling of each.

    Neighbours in the order differ little in length, so the way that was best for one microbatch is
    tried for the next before all others. Takes time in proportion to the sequences, and to the
    ways that are tried for each microbatch.

    Args:
        batch: The sequences.
        domain: Ranks and limits.
        as_upstream: Follow upstream's rule instead; see above.
        even: Join groups so that all end together.
        limit: Give up, and return nothing, when the microbatches together will take that many
            ticks, the rest of the sequences at their cheapest.
        effort: How many sequences may be placed, those of discarded fillings included, before the
            rest is filled without a comparison of ways.
    """
    usable = usable_chains(batch, domain, 0)[: 1 if as_upstream else MOST_CHAINS]
    tables = [_table(batch, domain, chain, as_upstream) for chain in usable]
    budget = domain.ranks * domain.max_tokens_per_rank
    dealer = _Dealer(tables, domain.ranks, budget, batch.microbatch_overhead)
    work = int(least_work(batch, domain)[batch.kind].sum())
    queue = _Queue(len(batch), work, _NO_LIMIT if effort is None else effort)
    packings: list[Packing] = []
    spent = freed = 0
    before: tuple[_Way, _Filling] | None = None
    while queue.count:
        if as_upstream:
            longest = tables[0].kind[queue.following(0)]
            best = _fill(queue, tables[0], tables[0].lowest[longest], _NO_LIMIT)
        else:
            way, best = dealer.next(queue, before)
            # One that was compared with others stays the measure while its way is taken.
            before = before if before and before[0] is way else (way, best)
        queue.remove(best)
        packings.append(_packed(best, batch, domain, even))
        if limit is None:
            continue
        spent += batch.microbatch_overhead
        if best.free:  # groups will grow, and take less time
            freed += best.work
        else:
            spent += packings[-1].ticks
        if spent + (queue.work + freed) / domain.ranks >= limit:
            return ()
    return tuple(packings)


def _table(batch: Batch, domain: Domain, chain: tuple[int, ...], as_upstream: bool) -> _Table:
    rows = [batch.sizes.index(size) for size in chain]
    first = np.searchsorted(batch.kind, np.arange(batch.ticks.shape[1] + 1)).tolist()
    if as_upstream:  # squared length over size, times the largest size: whole numbers
        squares = [length * length for length in batch.lengths[first[:-1]].tolist()]
        weights = [[square * (chain[-1] // size) for square in squares] for size in chain]
        overhead = [0] * len(chain)
    else:
        weights, overhead = batch.ticks[rows].tolist(), batch.overhead[rows].tolist()
    return _Table(
        chain,
        batch.kind.tolist(),
        first,
        weights,
        batch.tokens[rows].tolist(),
        overhead,
        np.argmax(batch.tokens[rows] <= domain.max_tokens_per_rank, axis=0).tolist(),
        least_work(batch, domain).tolist(),
        least_tokens(batch, domain).tolist(),
        domain.max_tokens_per_rank,
        domain.max_sequences or len(batch),
        domain.ranks,
    )


def _fill(
    queue: _Queue, table: _Table, level: int, limit: int, hopeless: int = _NO_LIMIT
) -> _Filling:
    """Fill a microbatch from a queue, longest first.

    The first sequence gets a group of the size ``level`` (an index), and no group gets heavier than
    ``limit``. The filling is given up when a group is heavier than ``hopeless``.
    """
    rows = zip(table.sizes, table.overhead, table.weights, table.tokens, strict=True)
    levels = [_Level(index, *row) for index, row in enumerate(rows)]
    now = _Filling(table, levels, table.ranks, len(levels), [])
    item, end = queue.following(0), len(table.kind)
    _add(now, item, _open(now, levels[level]))
    item = queue.following(item + 1)
    while item < end:
        if now.heaviest > hopeless:
            now.given_up = True
            return now
        group = _somewhere(now, table.kind[item], limit)
        if group is None:
            item = queue.following(max(item + 1, _first_that_may_fit(now, limit)))
        else:
            _add(now, item, group)
            item = queue.following(item + 1)
    kinds = [table.kind[item] for item in now.members]
    now.work = sum(map(table.work.__getitem__, kinds))
    now.tokens = sum(map(table.least.__getitem__, kinds))
    return now


def _first_that_may_fit(now: _Filling, limit: int) -> int:
    """All longer sequences fit into no group: too many tokens, or too heavy for the limit."""
    budget, found = now.table.budget, len(now.table.lowest)
    for level in now.levels:
        if level.full:
            found = min(found, bisect_left(level.tokens, level.full[0][0] - budget, key=neg))
        if level.heavy:
            found = min(found, bisect_left(level.weights, level.heavy[0][0] - limit, key=neg))
        if now.free >= level.size:
            fits = bisect_left(level.tokens, -budget, key=neg)
            light = bisect_left(level.weights, level.overhead - limit, key=neg)
            found = min(found, max(fits, light))
    return now.table.first[found]


def _open(now: _Filling, level: _Level) -> _Group:
    group = _Group(level.index, len(level.groups), level.overhead, 0, [])
    level.groups.append(group)
    now.free -= level.size
    looked_at = now.looked_at
    while looked_at and looked_at[-1].size > now.free and not looked_at[-1].groups:
        looked_at.pop()
    return group


def _add(now: _Filling, item: int, group: _Group) -> None:
    level, table = now.levels[group.level], now.table
    kind = table.kind[item]
    group.weight += level.weights[kind]
    group.tokens += level.tokens[kind]
    group.members.append(item)
    now.members.append(item)
    if group.weight > now.heaviest:
        now.heaviest = group.weight
    if len(group.members) < table.places:
        heappush(level.full, (group.tokens, group.index))


def _somewhere(now: _Filling, kind: int, limit: int) -> _Group | None:
    """Take out or open a group for a sequence, see the module; ``None`` where it fits nowhere."""
    table, heaviest, free = now.table, now.heaviest, now.free
    lowest = table.lowest[kind]
    if lowest != now.lowest:  # smaller sizes are looked at, too
        now.looked_at[:0] = now.levels[lowest : now.lowest]
        now.lowest = lowest
    best: _Level | None = None
    least, opened = limit + 1, False
    for level in now.looked_at:
        weight = level.weights[kind]
        below = heaviest - weight
        if level.groups:
            level.allow(table.budget - level.tokens[kind], below)
            if level.ready:
                return level.groups[heappop(level.ready)]
            if level.heavy and level.heavy[0][0] + weight < least:
                best, opened, least = level, False, level.heavy[0][0] + weight
        if free >= level.size:
            if level.overhead <= below:
                return _open(now, level)
            if level.overhead + weight < least:
                best, opened, least = level, True, level.overhead + weight
    if best is None:
        return None
    return _open(now, best) if opened else best.groups[heappop(best.heavy)[1]]


def _packed(filling: _Filling, batch: Batch, domain: Domain, even: bool) -> Packing:
    groups = [group for level in filling.levels for group in level.groups]
    members = np.array([item for group in groups for item in group.members])
    home = np.repeat(np.arange(len(groups)), [len(group.members) for group in groups])
    by_length = np.argsort(members, kind="stable")
    members, home = members[by_length], home[by_length]
    level = np.array([group.level for group in groups])
    return assembled(batch, domain, filling.table.sizes, level, members, home, even=even)
