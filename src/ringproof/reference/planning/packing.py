"""Pack a batch greedily: each sequence, longest first, into the group that it delays least.

One microbatch after the other is filled. A sequence goes to the first group, smallest sizes first,
in which it does not make the microbatch longer. Where there is none, it goes to the group (open
already, or new) in which it makes the microbatch longer by least. Two choices decide how long a
microbatch gets: the size of the group for the longest sequence, and whether other groups may take
longer than that one. They are tried for each microbatch, as far as the effort allows.

With squared length over size as the cost, the smallest size for the longest sequence and no limit,
this is the rule of upstream's packer (``next_hdp_group_packing_aware``). For small batches the
planner considers that plan, too.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import accumulate, chain
from operator import neg, truediv

from ringproof.reference.planning.costs import Batch, SizeTable
from ringproof.reference.planning.domain import Domain
from ringproof.reference.planning.groups import PackedGroup, PackedMicrobatch, use_all_ranks

GOOD_ENOUGH = 1.005
"""A microbatch within this factor of its work spread over all ranks is taken without a look at
other choices. Of 75 batches (5 distributions, 64 to 8,192 sequences, 16 to 256 ranks) the plans are
the same within 0.1% on average with 1.001 to 1.01; smaller factors take longer."""
COST_OF_UNUSED = 1 / 16
"""How much worse it is to leave a part of the token budget unused than to take that part longer.
With 0, upstream's cost measure, which has no price for a microbatch, gives four times as many
microbatches. Of the 75 batches, plans are at 1.0148 of the bound in the median with 1/16, at 1.0172
with 1/4, and at 1.0186 with 1/2."""
_MOST_NESTED = 6
"""Selections of nested sizes that are tried. A domain that is a power of two has one; domains with
more than six have dozens of divisors, and the selections differ little."""
_NO_LIMIT = 1 << 256
"""No sum of squared lengths comes near it."""


def pack_greedily(batch: Batch, effort: int) -> tuple[PackedMicrobatch, ...]:
    """Fill one microbatch after the other from all that remains; keep the best filling of each.

    Neighbours in the order differ little in length, so the choice that was best for one microbatch
    is tried for the next before all others. Takes time in proportion to the sequences and the
    effort.

    Args:
        batch: The sequences.
        effort: How many sequences may be placed, those of discarded fillings included, before the
            rest is filled without a comparison of choices.
    """
    packer = _Packer(batch, [batch.table(sizes) for sizes in _usable_sizes(batch)], effort)
    found = []
    while packer.remaining.count:
        best = packer.next_microbatch()
        found.append(use_all_ranks(best.table, best.groups))
    return tuple(found)


def pack_as_upstream(batch: Batch) -> tuple[PackedMicrobatch, ...]:
    """Pack by the rule of upstream's packer; idle ranks are used as by `pack_greedily`."""
    table = batch.table(_usable_sizes(batch)[0])
    # Squared length over size, times the largest size: whole numbers.
    squares, sizes = [length * length for length in batch.distinct], table.sizes
    costs = [[square * (sizes[-1] // size) for square in squares] for size in sizes]
    upstream = replace(table, costs=costs, overhead=[0] * len(sizes))
    remaining, found = _Remaining(batch), []
    while remaining.count:
        filled = _Filling(upstream)
        filled.fill(remaining, upstream.lowest(remaining.longest), _NO_LIMIT, _NO_LIMIT)
        members = filled.members
        remaining.remove(members, sum([batch.work[batch.kind[place]] for place in members]))
        for group in filled.groups:
            group.time = table.time(group.level, group.members)
        found.append(use_all_ranks(table, filled.groups))
    return tuple(found)


def pack_in_shares(batch: Batch, count: int, effort: int) -> tuple[PackedMicrobatch, ...]:
    """Pack each of ``count`` shares of the batch, which take sequences in turn, longest first.

    All microbatches then have sequences of all lengths, and take about the same time. Under a
    pipeline that is worth more than short ones, because the stages wait for the longest.
    """
    found = []
    for first in range(min(count, len(batch))):
        for packed in pack_greedily(batch.share(first, count), effort):
            for group in packed.groups:
                group.members[:] = [place * count + first for place in group.members]
            found.append(replace(packed, table=batch.table(packed.table.sizes)))
    return tuple(found)


def pack_on_all_ranks(batch: Batch) -> tuple[PackedMicrobatch, ...]:
    """Share every sequence among all ranks."""
    table = batch.table((batch.domain.ranks,))
    rows = [table.tokens[0][column] for column in batch.kind]
    packs = first_fit_decreasing(rows, batch.domain)
    groups = ([PackedGroup(0, table.time(0, pack), pack)] for pack in packs)
    return tuple(PackedMicrobatch(table, group) for group in groups)


def first_fit_decreasing(rows: list[int], domain: Domain) -> list[list[int]]:
    """Pack sequences longest first, each into the first pack that has room.

    Args:
        rows: Padded tokens per rank of each sequence, each within the budget.
        domain: Token budget and capacity of a pack.
    """
    most = domain.max_sequences or len(rows)
    packs: list[list[int]] = []
    room: list[int] = []
    full: list[tuple[int, int]] = []  # packs without room for the sequences so far, most room first
    ready: list[int] = []  # the others; sequences only get shorter, so room for one is room for all
    for sequence in sorted(range(len(rows)), key=rows.__getitem__, reverse=True):
        needed = rows[sequence]
        while full and -full[0][0] >= needed:
            heappush(ready, heappop(full)[1])
        if not ready:
            ready.append(len(packs))
            packs.append([])
            room.append(domain.max_tokens_per_rank)
        place = ready[0]
        packs[place].append(sequence)
        room[place] = left = room[place] - needed
        if len(packs[place]) == most:
            heappop(ready)
        elif left < needed:
            heappush(full, (-left, heappop(ready)))
    return packs


def _usable_sizes(batch: Batch) -> list[tuple[int, ...]]:
    """Nested group sizes whose largest group can hold the longest sequence."""
    domain, longest = batch.domain, batch.kind[0]
    fitting = {
        size
        for size, rows in zip(domain.cp_sizes, batch.tokens, strict=True)
        if rows[longest] <= domain.max_tokens_per_rank
    }
    return [sizes for sizes in domain.nested_sizes if sizes[-1] in fitting][:_MOST_NESTED]


class _Remaining:
    """The sequences that no microbatch has yet, longest first.

    Neither to remove some nor to find the next takes time in proportion to all that are left.

    Attributes:
        kind: Column of each sequence of the batch.
        there: For each place itself while it is left, else one that comes later.
        count, work: How many are left, and their least cost times ranks.
    """

    def __init__(self, batch: Batch) -> None:
        self.there = list(range(len(batch) + 1))
        self.kind = batch.kind
        self.count, self.work = len(batch), batch.total_work

    @property
    def longest(self) -> int:
        """Column of the longest sequence that is left."""
        return self.kind[self.following(0)]

    def following(self, place: int) -> int:
        """The first that is left at or after a place; the number of all sequences if none is."""
        following = self.there
        found = following[place]
        while found != following[found]:
            found = following[found]
        while place < found:  # the next look takes one step
            following[place], place = found, following[place]
        return found

    def remove(self, members: list[int], work: int) -> None:
        """Take out what a microbatch has, and the least cost times ranks of that."""
        following = self.there
        for place in members:
            following[place] = place + 1
        self.work -= work
        self.count -= len(members)


@dataclass(slots=True)
class _GroupsOfSize:
    """The groups of one size, in heaps by what keeps the next sequence out of them.

    Sequences come longest first, and the longest group of the microbatch never gets shorter. What
    is allowed only grows, so a group moves from ``full`` to ``longer`` to ``ready``, and back only
    when it is given a sequence. The group to take is found without a look at the others.

    Attributes:
        level: Level of the size in the table.
        size, overhead, costs, tokens: See `SizeTable`, of this size alone.
        groups: In the order they were opened.
        full: Rows and index of groups without room for the sequences so far.
        longer: Cost and index of groups that have room, but would get the longest.
        ready: Index of groups that have room and would not. The first one is given the sequence.
    """

    level: int
    size: int
    overhead: int
    costs: list[int]
    tokens: list[int]
    groups: list[PackedGroup] = field(default_factory=list)
    full: list[tuple[int, int]] = field(default_factory=list)
    longer: list[tuple[int, int]] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)


class _Filling:
    """A microbatch that is being filled: its groups by size, free ranks, and the longest group.

    Attributes:
        longest: Cost of the longest group.
        abandoned: Whether it was not filled to the end.
    """

    def __init__(self, table: SizeTable) -> None:
        rows = zip(table.sizes, table.overhead, table.costs, table.tokens, strict=True)
        self.table, self.free = table, table.domain.ranks
        self.levels = [_GroupsOfSize(level, *row) for level, row in enumerate(rows)]
        self.longest, self.abandoned = 0, False
        self._budget, self._first_held = table.domain.max_tokens_per_rank, table.first_held
        self._most = table.domain.max_sequences or len(table.kind)
        # Sizes to look at, without the largest if they have neither groups nor ranks, for
        # sequences that need at least the level `lowest`.
        self._looked_at: list[_GroupsOfSize] = []
        self._lowest = len(self.levels)

    @property
    def groups(self) -> list[PackedGroup]:
        """All groups, by size."""
        return [group for level in self.levels for group in level.groups]

    @property
    def members(self) -> list[int]:
        """The sequences in it."""
        return list(chain.from_iterable([group.members for group in self.groups]))

    def fill(self, remaining: _Remaining, level: int, limit: int, cutoff: float) -> None:
        """Fill it from what remains, longest first.

        The first sequence gets a group of ``level``, and no group gets longer than ``limit``. The
        filling is abandoned when a group is longer than ``cutoff``.
        """
        kind, place, there = remaining.kind, remaining.following(0), remaining.there
        budget, most, count = self._budget, self._most, len(remaining.kind)
        size: _GroupsOfSize | None = self._opened(self.levels[level])
        column = kind[place]
        # Planning takes about as long as this loop, so it calls nothing that it can do itself.
        while True:
            again = False
            if size is None:
                first = bisect_left(kind, self._first_that_may_fit(limit), place)
                place = remaining.following(max(place + 1, first))
            else:
                ready, cost, rows = size.ready, size.costs[column], size.tokens[column]
                group = size.groups[ready[0]]
                group.members.append(place)
                group.time = time = group.time + cost
                group.rows = held = group.rows + rows
                # No sequence to come is longer than this one: with room for it there is room for
                # all, and what is first in `ready` stays there.
                again = time + cost <= self.longest
                if time > self.longest:
                    self.longest = time
                if len(group.members) == most:
                    heappop(ready)
                elif held + rows > budget:
                    heappush(size.full, (held, heappop(ready)))
                elif not again:
                    heappush(size.longer, (time, heappop(ready)))
                place += 1
                if there[place] != place:
                    place = remaining.following(place)
                again = again and bool(ready)
            if place == count:
                return
            if self.longest > cutoff:
                self.abandoned = True
                return
            before, column = column, kind[place]
            # Of two sequences of one length the second finds all groups as the first found them,
            # unless it needs a group that was not ready.
            if not again or column != before:
                size = self._group_for(column, limit)

    def _group_for(self, column: int, limit: int) -> _GroupsOfSize | None:
        """The size whose first ready group gets a sequence, see the module.

        Makes a group ready, or opens one, where none is; ``None`` if the sequence fits nowhere.
        """
        longest, free, budget = self.longest, self.free, self._budget
        first_held = self._first_held
        while self._lowest and first_held[self._lowest - 1] <= column:  # fits smaller sizes, too
            self._lowest -= 1
            self._looked_at.insert(0, self.levels[self._lowest])
        best: _GroupsOfSize | None = None
        least, opened = limit + 1, False
        for level in self._looked_at:
            cost = level.costs[column]
            below = longest - cost
            if level.groups:
                full, longer, room = level.full, level.longer, budget - level.tokens[column]
                while full and full[0][0] <= room:
                    index = heappop(full)[1]
                    heappush(longer, (level.groups[index].time, index))
                while longer and longer[0][0] <= below:
                    heappush(level.ready, heappop(longer)[1])
                if level.ready:
                    return level
                if longer and longer[0][0] + cost < least:
                    best, opened, least = level, False, longer[0][0] + cost
            if free >= level.size:
                if level.overhead <= below:
                    return self._opened(level)
                if level.overhead + cost < least:
                    best, opened, least = level, True, level.overhead + cost
        if best is None:
            return None
        if opened:
            return self._opened(best)
        best.ready.append(heappop(best.longer)[1])
        return best

    def _opened(self, level: _GroupsOfSize) -> _GroupsOfSize:
        level.ready.append(len(level.groups))  # no other is ready, else none would be opened
        level.groups.append(PackedGroup(level.level, level.overhead))
        self.free -= level.size
        looked_at = self._looked_at
        while looked_at and looked_at[-1].size > self.free and not looked_at[-1].groups:
            looked_at.pop()
        return level

    def _first_that_may_fit(self, limit: int) -> int:
        """The first column that may fit: longer sequences have too many tokens or exceed the
        limit in every group."""
        budget, found = self._budget, len(self.table.costs[0])
        for level, held in zip(self.levels, self._first_held, strict=True):
            if level.full:
                found = min(found, bisect_left(level.tokens, level.full[0][0] - budget, key=neg))
            if level.longer:
                found = min(found, bisect_left(level.costs, level.longer[0][0] - limit, key=neg))
            if self.free >= level.size:
                short = bisect_left(level.costs, level.overhead - limit, key=neg)
                found = min(found, max(held, short))
        return found


@dataclass(frozen=True)
class _Choice:
    """A way to fill a microbatch.

    Attributes:
        table: Index of the nested sizes.
        level: Level of the group for the longest sequence.
        limited: Whether no other group gets longer than that one.
    """

    table: int
    level: int
    limited: bool = False


@dataclass(frozen=True)
class _Rated:
    """A filling and how good it is; 1 is perfect.

    Attributes:
        choice, filling: The way it was filled, and itself.
        members, work: Its sequences, and their least cost times ranks.
        imbalance: Its time over that of its work spread over all ranks.
        score: The same with what the microbatch itself costs.
    """

    choice: _Choice
    filling: _Filling
    members: list[int]
    work: int
    imbalance: float
    score: float


class _Packer:
    """Fills one microbatch after the other, each in the best way that was found.

    Fillings of one microbatch hold different sequences, so their times cannot be compared. Each is
    compared with its own ideal: the time that its work takes if it is spread over all ranks.
    """

    def __init__(self, batch: Batch, tables: list[SizeTable], effort: int) -> None:
        self.batch, self.tables, self.effort = batch, tables, effort
        self.remaining = _Remaining(batch)
        self._before: _Rated | None = None
        # The largest cost per token of all ranks among the sequences from a column on.
        ratios = map(truediv, reversed(batch.work), reversed(batch.space))
        self._dearest = list(accumulate(ratios, max))[::-1]

    def next_microbatch(self) -> _Filling:
        """Fill the next microbatch in the way of the last one if that is good, else the best."""
        found, before = None, self._before
        if before and before.choice.level >= self._lowest(before.choice.table):
            found = self._filled(before.choice, math.inf)
        if found is None or found.imbalance > GOOD_ENOUGH:
            found = self._best(found)
        self._before = found if found.imbalance <= GOOD_ENOUGH else None
        self.remaining.remove(found.members, found.work)
        return found.filling

    def _lowest(self, table: int) -> int:
        return self.tables[table].lowest(self.remaining.longest)

    def _best(self, best: _Rated | None) -> _Rated:
        for table in range(len(self.tables)):
            for levels in self._levels(table):
                best = self._along(table, levels, best)
                if best and best.imbalance <= GOOD_ENOUGH:
                    return best
        assert best is not None
        return best

    def _along(self, table: int, levels: range, best: _Rated | None) -> _Rated | None:
        """Try levels one after the other while each is better than the best so far."""
        for level in levels:
            found = self._better(_Choice(table, level), best)
            if found is best:
                break
            best = found
            if best.imbalance <= GOOD_ENOUGH:
                break
        return best

    def _levels(self, table: int) -> Iterator[range]:
        """Levels for the group of the longest sequence, in the order in which they are tried.

        The first one is the smallest at which that sequence does not take longer than all ranks
        need for the whole batch. Larger ones are tried while that helps, then smaller ones.
        """
        alone, ideal = self._alone(table), self._ideal(self.remaining.work)
        smallest = self._lowest(table)
        sizes = range(smallest, len(alone))
        start = next((level for level in sizes if alone[level] <= ideal), None)
        start = min(sizes, key=alone.__getitem__) if start is None else start
        yield range(start, len(alone))
        yield range(start - 1, smallest - 1, -1)

    def _alone(self, table: int) -> list[int]:
        """Time of the longest sequence alone, by level."""
        rows, longest = self.tables[table], self.remaining.longest
        return [row[longest] + over for row, over in zip(rows.costs, rows.overhead, strict=True)]

    def _better(self, choice: _Choice, best: _Rated | None) -> _Rated:
        """The better one of ``best`` and of both fillings with one level for the longest sequence.

        With a limit some sequences are left, which is no use where one microbatch has room for all.
        """
        alone = self._alone(choice.table)[choice.level]
        if best and (alone >= best.score * self._ideal(self.remaining.work) or self.effort < 0):
            return best
        found = self._filled(choice, best.score if best else math.inf)
        if best is None or found.score < best.score:
            best = found
        everything = self.remaining.count in (len(found.members), len(best.members))
        done = best.imbalance <= GOOD_ENOUGH or self.effort < 0
        if found.filling.longest <= alone or everything or done:
            return best
        other = self._filled(replace(choice, limited=True), best.score)
        return other if other.score < best.score else best

    def _filled(self, choice: _Choice, to_beat: float) -> _Rated:
        """A rated filling; abandoned where it cannot be rated better than ``to_beat``."""
        remaining, limit, cutoff = self.remaining, _NO_LIMIT, math.inf
        domain, overhead = self.batch.domain, self.batch.microbatch_overhead
        if choice.limited:
            limit = self._alone(choice.table)[choice.level]
        if to_beat < math.inf:
            # No filling has more work than what remains, nor than its tokens can have; a group that
            # is longer than this makes the score worse than `to_beat` whatever else is filled in.
            most = self._dearest[remaining.longest] * domain.max_tokens_per_rank
            cutoff = to_beat * min(self._ideal(remaining.work), most) + 1 - overhead
        filling = _Filling(self.tables[choice.table])
        filling.fill(remaining, choice.level, limit, cutoff)
        members = filling.members
        self.effort -= len(members)
        if filling.abandoned:
            return _Rated(choice, filling, members, 0, math.inf, math.inf)
        held = list(map(remaining.kind.__getitem__, members))
        work = sum(map(self.batch.work.__getitem__, held))
        used = sum(map(self.batch.space.__getitem__, held))
        ideal = self._ideal(work)
        unused = 1 - used / (domain.ranks * domain.max_tokens_per_rank)
        imbalance = filling.longest / ideal
        if len(held) < remaining.count:  # the last microbatch cannot use the whole budget
            imbalance += COST_OF_UNUSED * unused
        return _Rated(choice, filling, members, work, imbalance, imbalance + overhead / ideal)

    def _ideal(self, work: int) -> float:
        return max(work / self.batch.domain.ranks, 1.0)
