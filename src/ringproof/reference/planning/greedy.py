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
        ticks, weights, tokens: By size and kind; ``weights`` is what the rule compares, ticks or
            squared lengths.
        ticks_overhead, overhead: By size, of ``ticks`` and of ``weights``.
        lowest: The smallest size (an index) that holds a sequence.
        work, least: The least rank-ticks and rank-tokens of a sequence, over all sizes.
        budget, places: Tokens per rank and sequences that a group may hold.
        ranks: Of the domain.
    """

    sizes: tuple[int, ...]
    kind: list[int]
    first: list[int]
    ticks: list[list[int]]
    ticks_overhead: list[int]
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

    Also how many sequences it has, and their least rank-ticks and rank-tokens. Afterwards whether
    it was given up, and its rating; 1 is perfect.
    """

    table: _Table
    levels: list[_Level]
    free: int
    heaviest: int = 0
    count: int = 0
    work: int = 0
    tokens: int = 0
    given_up: bool = False
    slowness: float = math.inf
    rating: float = math.inf

    @property
    def members(self) -> list[int]:
        """All sequences in it."""
        return [item for level in self.levels for group in level.groups for item in group.members]

    @property
    def ticks(self) -> int:
        """Time of the longest group, whatever the rule compares."""
        table = self.table
        return max(
            table.ticks_overhead[group.level]
            + sum(table.ticks[group.level][table.kind[item]] for item in group.members)
            for level in self.levels
            for group in level.groups
        )


@dataclass(frozen=True)
class _Way:
    """A way to fill a microbatch, and how good that was when all ways were compared.

    Attributes:
        table: Costs for one chain of sizes.
        level: Size (an index) of the group for the longest sequence.
        limited: Whether no other group gets heavier than that one.
        slowness, rating: Of the microbatch; see `_Filling`.
    """

    table: _Table
    level: int
    limited: bool
    rating: float
    slowness: float


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

    def best(self, queue: _Queue) -> tuple[_Filling, _Way]:
        """The best filling over all ways, and the way."""
        found = [self._best_of(queue, table) for table in self.tables]
        return min(found, key=lambda pair: pair[0].rating)

    def again(self, queue: _Queue, way: _Way) -> _Filling | None:
        """A microbatch filled in the way of an earlier one; ``None`` if that is not as good."""
        filling = self._filled(queue, way.table, way.level, way.limited, math.inf)
        enough = way.rating * _AS_GOOD if way.slowness <= _WELL else 0.0
        as_good = filling.rating <= enough or filling.slowness <= GOOD_ENOUGH
        same = filling.rating == way.rating  # equal sequences in equal places
        return filling if (as_good or same) and filling.count < queue.count else None

    def _best_of(self, queue: _Queue, table: _Table) -> tuple[_Filling, _Way]:
        """The best over sizes for the longest sequence; larger ones are tried while that helps."""
        best: tuple[_Filling, _Way] | None = None
        longest = table.kind[queue.following(0)]
        for level in range(table.lowest[longest], len(table.sizes)):
            to_beat = best[0].rating if best else math.inf
            better = self._filled(queue, table, level, False, to_beat)
            limited = False
            good = better.slowness <= GOOD_ENOUGH or (queue.effort < 0 and not better.given_up)
            alone = table.weights[level][longest] + table.overhead[level]
            if better.heaviest > alone and not good:
                other = self._filled(queue, table, level, True, to_beat)
                limited = other.rating < better.rating
                better = other if limited else better
            if best is not None and better.rating >= to_beat:
                break
            best = better, _Way(table, level, limited, better.rating, better.slowness)
            if better.slowness <= GOOD_ENOUGH or queue.effort < 0:
                break
        assert best is not None
        return best

    def _filled(
        self, queue: _Queue, table: _Table, level: int, limited: bool, to_beat: float
    ) -> _Filling:
        """A rated filling; given up early where it cannot be rated better than ``to_beat``."""
        longest, limit, hopeless = table.kind[queue.following(0)], _NO_LIMIT, _NO_LIMIT
        if limited:
            limit = table.weights[level][longest] + table.overhead[level]
        if to_beat < math.inf:
            hopeless = int(to_beat * self._ideal(queue.work)) + 1 - self.microbatch_overhead
        filling = _fill(queue, table, level, limit, hopeless)
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
    fillings: list[_Filling] = []
    spent = freed = 0
    way: _Way | None = None
    while queue.count:
        if as_upstream:
            longest = tables[0].kind[queue.following(0)]
            best = _fill(queue, tables[0], tables[0].lowest[longest], _NO_LIMIT)
        else:
            again = dealer.again(queue, way) if way else None
            best, way = (again, way) if again else dealer.best(queue)
        queue.remove(best)
        fillings.append(best)
        if limit is None:
            continue
        spent += batch.microbatch_overhead
        if best.free:  # groups will grow, and take less time
            freed += best.work
        else:
            spent += best.ticks
        if spent + (queue.work + freed) / domain.ranks >= limit:
            return ()
    return tuple(_packed(filling, batch, domain, even) for filling in fillings)


def _table(batch: Batch, domain: Domain, chain: tuple[int, ...], as_upstream: bool) -> _Table:
    rows = [batch.sizes.index(size) for size in chain]
    ticks, ticks_overhead = batch.ticks[rows].tolist(), batch.overhead[rows].tolist()
    weights, overhead = ticks, ticks_overhead
    first = np.searchsorted(batch.kind, np.arange(batch.ticks.shape[1] + 1)).tolist()
    if as_upstream:  # squared length over size, times the largest size: whole numbers
        squares = [length * length for length in batch.lengths[first[:-1]].tolist()]
        weights = [[square * (chain[-1] // size) for square in squares] for size in chain]
        overhead = [0] * len(chain)
    return _Table(
        chain,
        batch.kind.tolist(),
        first,
        ticks,
        ticks_overhead,
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
    now = _Filling(table, [_Level() for _ in table.sizes], table.ranks)
    item, end = queue.following(0), len(table.kind)
    _add(now, table, item, _open(now, table, level))
    item = queue.following(item + 1)
    while item < end:
        if now.heaviest > hopeless:
            now.given_up = True
            return now
        group = _somewhere(now, table, table.kind[item], limit)
        if group is None:
            item = queue.following(max(item + 1, _first_that_may_fit(now, table, limit)))
        else:
            _add(now, table, item, group)
            item = queue.following(item + 1)
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
    return table.first[found]


def _open(now: _Filling, table: _Table, level: int) -> _Group:
    groups = now.levels[level].groups
    groups.append(_Group(level, len(groups), table.overhead[level]))
    now.free -= table.sizes[level]
    return groups[-1]


def _add(now: _Filling, table: _Table, item: int, group: _Group) -> None:
    level, kind = group.level, table.kind[item]
    group.weight += table.weights[level][kind]
    group.tokens += table.tokens[level][kind]
    group.members.append(item)
    now.count += 1
    now.work += table.work[kind]
    now.tokens += table.least[kind]
    if group.weight > now.heaviest:
        now.heaviest = group.weight
    if len(group.members) < table.places:
        heappush(now.levels[level].full, (group.tokens, group.index))


def _somewhere(now: _Filling, table: _Table, kind: int, limit: int) -> _Group | None:
    """Take out or open a group for a sequence of a kind, see the module; ``None`` where it fits nowhere."""
    best: int | None = None
    least, opened = limit + 1, False
    for level in range(table.lowest[kind], len(table.sizes)):
        weight, state = table.weights[level][kind], now.levels[level]
        below = now.heaviest - weight
        if state.groups:
            state.allow(table.budget - table.tokens[level][kind], below)
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
