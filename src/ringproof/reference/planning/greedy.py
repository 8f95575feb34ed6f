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

from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.groups import Packing, assembled
from ringproof.reference.planning.pack import (
    FULL_ENOUGH,
    GOOD_ENOUGH,
    WEIGHT_OF_UNUSED,
    usable_chains,
)

_NO_LIMIT = 1 << 256
"""No sum of squared lengths comes near it."""
_AS_GOOD, _WELL = 1.0005, 1.005
"""A microbatch filled in the way of an earlier one may be rated worse than that by the first factor
if the earlier one was slower than its work by at most the second: after a bad one, better ones may
follow."""


def one_by_one(
    batch: Batch,
    *,
    as_upstream: bool = False,
    even: bool = True,
    limit: float = math.inf,
    effort: int = _NO_LIMIT,
) -> tuple[Packing, ...]:
    """Fill one microbatch after the other from all that remains; keep the best filling of each.

    Neighbours in the order differ little in length, so the way that was best for one microbatch is
    tried for the next before all others. Takes time in proportion to the sequences, and to the
    ways that are tried for each microbatch.

    Args:
        batch: The sequences.
        as_upstream: Follow upstream's rule instead; see above.
        even: Join groups so that all end together.
        limit: Give up, and return nothing, when the microbatches together will take that many
            ticks, the rest of the sequences at their cheapest.
        effort: How many sequences may be placed, those of discarded fillings included, before the
            rest is filled without a comparison of ways.
    """
    usable = usable_chains(batch, 0)[: 1 if as_upstream else None]
    tables = [_table(batch, chain, as_upstream) for chain in usable]
    densest = np.maximum.accumulate((batch.work / batch.space)[::-1])[::-1]
    dealer = _Dealer(batch, tables, densest.tolist())
    queue = _Queue(batch, effort)
    packings: list[Packing] = []
    spent = freed = 0
    before: tuple[_Way, _Filling] | None = None
    while queue.count:
        if as_upstream:
            best = _Filling(tables[0])
            best.fill(queue, best.table.lowest[queue.longest], _NO_LIMIT, _NO_LIMIT)
        else:
            way, best = dealer.next(queue, before)
            # One that was compared with others stays the measure while its way is taken.
            before = before if before and before[0] is way else (way, best)
        queue.remove(best)
        packings.append(_packed(best, batch, even))
        spent += batch.microbatch_overhead
        if best.free:  # groups will grow, and take less time
            freed += best.work
        else:
            spent += packings[-1].ticks
        if spent + (queue.work + freed) / batch.domain.ranks >= limit:
            return ()
    return tuple(packings)


@dataclass(frozen=True)
class _Table:
    """The kinds of a batch for one chain of sizes, as lists: single entries are looked up.

    Attributes:
        sizes: The chain.
        weights, tokens: By size and kind; ``weights`` is what the rule compares, ticks or squared
            lengths.
        overhead: Weight of a group whatever is in it, by size.
        lowest: The smallest size (an index) that holds a sequence, by kind.
        budget, places: Tokens per rank and sequences that a group may hold.
        ranks: Ranks of the domain.
    """

    sizes: tuple[int, ...]
    weights: list[list[int]]
    tokens: list[list[int]]
    overhead: list[int]
    lowest: list[int]
    budget: int
    places: int
    ranks: int


def _table(batch: Batch, chain: tuple[int, ...], as_upstream: bool) -> _Table:
    rows, domain = batch.rows(chain), batch.domain
    tokens = batch.tokens[rows]
    if as_upstream:  # squared length over size, times the largest size: whole numbers
        squares = [length * length for length in batch.distinct.tolist()]
        weights = [[square * (chain[-1] // size) for square in squares] for size in chain]
        overhead = [0] * len(chain)
    else:
        weights, overhead = batch.ticks[rows].tolist(), batch.overhead[rows].tolist()
    lowest = np.argmax(tokens <= domain.max_tokens_per_rank, axis=0).tolist()
    limits = domain.max_tokens_per_rank, domain.max_sequences or len(batch), domain.ranks
    return _Table(chain, weights, tokens.tolist(), overhead, lowest, *limits)


class _Queue:
    """The sequences that no microbatch has yet, longest first.

    Neither to remove some nor to find the next takes time in proportion to all that are left.

    Attributes:
        kind: Kind of each sequence of the batch.
        work_of, space_of: See `Batch`.
        count, work: How many are left, and their least rank-ticks.
        effort: How many sequences may still be placed to compare ways.
    """

    def __init__(self, batch: Batch, effort: int) -> None:
        self._next = list(range(len(batch) + 1))  # itself while there, else one that comes later
        self.kind: list[int] = batch.kind.tolist()
        self.work_of: list[int] = batch.work.tolist()
        self.space_of: list[int] = batch.space.tolist()
        self.count, self.work, self.effort = len(batch), batch.total_work, effort

    @property
    def longest(self) -> int:
        """Kind of the longest sequence that is left."""
        return self.kind[self.following(0)]

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
    tokens: int = 0
    members: list[int] = field(default_factory=list)


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


class _Filling:
    """A microbatch that is being filled: its groups by size, free ranks, and the heaviest group.

    Attributes:
        members: The sequences in it.
        work, tokens: Their least rank-ticks and rank-tokens, known afterwards.
        given_up: Whether it was not filled to the end.
        slowness: Its time over the ideal, plus what is missing to a full one; 1 is perfect.
        rating: The same with what the microbatch itself costs.
    """

    def __init__(self, table: _Table) -> None:
        rows = zip(table.sizes, table.overhead, table.weights, table.tokens, strict=True)
        self.table, self.free = table, table.ranks
        self.levels = [_Level(index, *row) for index, row in enumerate(rows)]
        self.heaviest = self.work = self.tokens = 0
        self.given_up = False
        self.members: list[int] = []
        self.slowness = self.rating = math.inf
        # Sizes to look at, without the largest if they have neither groups nor ranks, for
        # sequences that need at least the size `lowest`.
        self._looked_at: list[_Level] = []
        self._lowest = len(self.levels)

    @property
    def count(self) -> int:
        """Number of sequences in it."""
        return len(self.members)

    def fill(self, queue: _Queue, level: int, limit: int, hopeless: int) -> None:
        """Fill it from a queue, longest first.

        The first sequence gets a group of the size ``level`` (an index), and no group gets heavier
        than ``limit``. The filling is given up when a group is heavier than ``hopeless``.
        """
        kinds, item = queue.kind, queue.following(0)
        group: _Group | None = self._opened(self.levels[level])
        while True:
            if group is None:
                first = bisect_left(kinds, self._first_kind_that_may_fit(limit), item)
                item = queue.following(max(item + 1, first))
            else:
                self._add(item, kinds[item], group)
                item = queue.following(item + 1)
            if item == len(kinds):
                break
            if self.heaviest > hopeless:
                self.given_up = True
                return
            group = self._somewhere(kinds[item], limit)
        held = [kinds[item] for item in self.members]
        self.work = sum(map(queue.work_of.__getitem__, held))
        self.tokens = sum(map(queue.space_of.__getitem__, held))

    def _add(self, item: int, kind: int, group: _Group) -> None:
        level = self.levels[group.level]
        group.weight += level.weights[kind]
        group.tokens += level.tokens[kind]
        group.members.append(item)
        self.members.append(item)
        if group.weight > self.heaviest:
            self.heaviest = group.weight
        if len(group.members) < self.table.places:
            heappush(level.full, (group.tokens, group.index))

    def _somewhere(self, kind: int, limit: int) -> _Group | None:
        """Take out or open a group for a sequence, see the module; ``None`` if it fits nowhere."""
        heaviest, free, budget = self.heaviest, self.free, self.table.budget
        lowest = self.table.lowest[kind]
        if lowest != self._lowest:  # smaller sizes are looked at, too
            self._looked_at[:0] = self.levels[lowest : self._lowest]
            self._lowest = lowest
        best: _Level | None = None
        least, opened = limit + 1, False
        for level in self._looked_at:
            weight = level.weights[kind]
            below = heaviest - weight
            if level.groups:
                full, heavy, room = level.full, level.heavy, budget - level.tokens[kind]
                while full and full[0][0] <= room:
                    index = heappop(full)[1]
                    heappush(heavy, (level.groups[index].weight, index))
                while heavy and heavy[0][0] <= below:
                    heappush(level.ready, heappop(heavy)[1])
                if level.ready:
                    return level.groups[heappop(level.ready)]
                if heavy and heavy[0][0] + weight < least:
                    best, opened, least = level, False, heavy[0][0] + weight
            if free >= level.size:
                if level.overhead <= below:
                    return self._opened(level)
                if level.overhead + weight < least:
                    best, opened, least = level, True, level.overhead + weight
        if best is None:
            return None
        return self._opened(best) if opened else best.groups[heappop(best.heavy)[1]]

    def _opened(self, level: _Level) -> _Group:
        group = _Group(level.index, len(level.groups), level.overhead)
        level.groups.append(group)
        self.free -= level.size
        looked_at = self._looked_at
        while looked_at and looked_at[-1].size > self.free and not looked_at[-1].groups:
            looked_at.pop()
        return group

    def _first_kind_that_may_fit(self, limit: int) -> int:
        """Longer sequences fit into no group: too many tokens, or too heavy for the limit."""
        budget, found = self.table.budget, len(self.table.lowest)
        for level in self.levels:
            if level.full:
                found = min(found, bisect_left(level.tokens, level.full[0][0] - budget, key=neg))
            if level.heavy:
                found = min(found, bisect_left(level.weights, level.heavy[0][0] - limit, key=neg))
            if self.free >= level.size:
                fits = bisect_left(level.tokens, -budget, key=neg)
                light = bisect_left(level.weights, level.overhead - limit, key=neg)
                found = min(found, max(fits, light))
        return found


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
    limited: bool = False


@dataclass(frozen=True)
class _Dealer:
    """Fills one microbatch after the other from a queue.

    A filling is rated by its time over the ideal, and by the part of the budget (of all ranks'
    tokens) that it does not use. ``densest`` are the most rank-ticks per token that a sequence of
    each kind, or a shorter one, has.
    """

    batch: Batch
    tables: list[_Table]
    densest: list[float]

    def next(self, queue: _Queue, before: tuple[_Way, _Filling] | None) -> tuple[_Way, _Filling]:
        """The next microbatch, and the way in which it was filled.

        The way of the microbatch before it is taken if the result is as good; else the best way.
        """
        known: dict[_Way, _Filling] = {}
        if before is not None:
            way, measure = before
            if way.level >= self.tables[way.table].lowest[queue.longest]:
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
        rows, longest = self.tables[table], queue.longest
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
                way = _Way(table, level)
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

    def _filled(self, queue: _Queue, way: _Way, to_beat: float) -> _Filling:
        """A rated filling; given up early where it cannot be rated better than ``to_beat``."""
        table, hopeless, limit = self.tables[way.table], _NO_LIMIT, _NO_LIMIT
        domain, overhead = self.batch.domain, self.batch.microbatch_overhead
        if way.limited:
            limit = table.weights[way.level][queue.longest] + table.overhead[way.level]
        if to_beat < math.inf:
            most = self.densest[queue.longest] * domain.max_tokens_per_rank
            hopeless = int(to_beat * min(self._ideal(queue.work), most)) + 1 - overhead
        filling = _Filling(table)
        filling.fill(queue, way.level, limit, hopeless)
        queue.effort -= filling.count
        if not filling.given_up:
            ideal = self._ideal(filling.work)
            part = filling.tokens / (domain.ranks * domain.max_tokens_per_rank)
            missing = max(0.0, FULL_ENOUGH - part) if filling.count < queue.count else 0.0
            filling.slowness = filling.heaviest / ideal + WEIGHT_OF_UNUSED * missing
            filling.rating = filling.slowness + overhead / ideal
        return filling

    def _ideal(self, work: int) -> float:
        return max(work / self.batch.domain.ranks, 1.0)


def _packed(filling: _Filling, batch: Batch, even: bool) -> Packing:
    groups = [group for level in filling.levels for group in level.groups]
    members = np.array([item for group in groups for item in group.members])
    home = np.repeat(np.arange(len(groups)), [len(group.members) for group in groups])
    level = np.array([group.level for group in groups])
    return assembled(batch, filling.table.sizes, level, members, home, even=even)
