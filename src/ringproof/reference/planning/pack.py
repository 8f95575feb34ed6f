"""One microbatch: sequences into groups that together take up all ranks.

1. A target length, and with it the smallest group size that each sequence can do with.
2. As many groups of each size as those sequences need; the rest of the ranks in the smallest.
3. Deal the sequences, longest first, at first within the target, then ever more above it.
4. Where tokens are still missing to the microbatch's share, fill holes with shorter sequences that
   were meant for later ones.
5. Join groups that came out too long with short ones, and widen groups into idle ranks (`groups`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ringproof.reference.planning.costs import Batch, Items
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.groups import Packing, assembled

FULL_ENOUGH = 0.998
"""Part of the wanted tokens above which a microbatch counts as full: padding takes the rest."""
GOOD_ENOUGH = 1.002
"""A microbatch within this factor of its work spread over all ranks is accepted at once."""
WEIGHT_OF_UNUSED = 0.5
"""How much worse it is to leave a part of a microbatch's token budget unused than to take that part
longer, where microbatches are filled one after the other. Only the last one's rest is lost."""
NO_LIMIT = int(np.iinfo(np.int64).max) // 4
"""No sum of ticks comes near it, and adding to it does not overflow."""
_MOST_CHAINS = 6
"""Chains of group sizes that are tried for one microbatch. A domain that is a power of two has one
chain; domains with more than six have dozens of divisors, and the chains differ little."""
_LIMITS = (1.0, 1.03, 1.1, 1.4)
"""How far above the target a group may end, tried in this order; then without limit."""
_LONGER = 1.03
"""Factor from one target to the next, while the groups that are needed exceed the ranks."""
_ATTEMPTS = 80
"""Targets that are tried; the last one is ten times as long as the first."""
_FEW = 512
"""Up to so many sequences, single numbers are searched in lists: 0.2 us (arrays: 1.3 us). For more,
making the lists takes longer."""
_PRECISION = 500
"""The target is found to one part in this; packing rounds far more."""


def usable_chains(batch: Batch, longest: int) -> list[tuple[int, ...]]:
    """Chains of group sizes whose largest group can hold the sequence at a place of the order."""
    domain, tokens = batch.domain, batch.tokens[:, batch.kind[longest]].tolist()
    sizes = zip(domain.cp_sizes, tokens, strict=True)
    fitting = {size for size, rows in sizes if rows <= domain.max_tokens_per_rank}
    return [chain for chain in domain.chains if chain[-1] in fitting][:_MOST_CHAINS]


def first_fit(tokens: IntArray, domain: Domain) -> list[list[int]]:
    """Pack sequences longest first, each into the first pack that has room.

    Args:
        tokens: Padded tokens per rank of each sequence, each within the budget.
        domain: Token budget and capacity of a pack.
    """
    most = domain.max_sequences or len(tokens)
    packs: list[list[int]] = []
    room: list[int] = []
    full: list[tuple[int, int]] = []  # packs without room for the sequences so far, most room first
    ready: list[int] = []  # the others; sequences only get shorter, so room for one is room for all
    order = np.argsort(-tokens, kind="stable")
    for sequence, rows in zip(order.tolist(), tokens[order].tolist(), strict=True):
        while full and -full[0][0] >= rows:
            heappush(ready, heappop(full)[1])
        if ready:
            place = heappop(ready)
        else:
            place = len(packs)
            packs.append([])
            room.append(domain.max_tokens_per_rank)
        packs[place].append(sequence)
        room[place] -= rows
        if len(packs[place]) < most and room[place]:
            heappush(full, (-room[place], place))
    return packs


@dataclass(frozen=True)
class Target:
    """A microbatch length to aim at.

    Attributes:
        ticks: The length.
        base: Index of the smallest group size to use.
        starts: Per group size, the first sequence that is short enough for it: sequence ``i`` goes
            to the smallest size whose start is at most ``i``.
    """

    ticks: int
    base: int
    starts: tuple[int, ...]

    def spans(self, count: int) -> list[tuple[int, int]]:
        """Per group size, the sequences that need it: half-open, adjoining, smallest size last."""
        found, end = [], count
        for start in self.starts:
            found.append((min(start, end), end))
            end = min(start, end)
        return found


class Targets:
    """Finds targets for one set of sequences; holds their prefix sums."""

    def __init__(self, items: Items, domain: Domain) -> None:
        self._items = items
        self._ranks = domain.ranks
        self._ascending = _rows(items.ticks[:, ::-1])
        budget = domain.max_tokens_per_rank
        self._fitting = [_first(row[::-1], budget) for row in items.tokens]
        sizes = np.array(items.sizes)[:, None]
        work = np.zeros((len(items.sizes), len(items) + 1), np.int64)
        np.cumsum(items.ticks * sizes, axis=1, out=work[:, 1:])
        self._work = _rows(work)
        self._overhead = items.overhead.tolist()
        self._alone = items.ticks[:, 0] + items.overhead

    def shortest(self, base: int) -> Target | None:
        """The shortest length for which all the ranks' work suffices in the continuum.

        No packing with sizes from ``base`` (an index) on is shorter than about that. ``None`` when
        a sequence does not fit into the largest group.
        """
        if self._fitting[-1] > 0:
            return None
        # The longest sequence at its fastest: larger groups may be slower, across nodes.
        usable = [level for level in range(base, len(self._fitting)) if not self._fitting[level]]
        low = int(self._alone[usable].min())
        high = int(self._work[base][-1]) // self._ranks + int(self._alone[base]) + 1
        while not self._suffices(self.at(high, base)):
            low, high = high, 2 * high
        while high - low > max(1, low // _PRECISION):
            middle = (low + high) // 2
            if self._suffices(self.at(middle, base)):
                high = middle
            else:
                low = middle + 1
        return self.at(high, base)

    def longer(self, than: Target) -> Target | None:
        """The next length at which the longest sequence can do with a smaller group."""
        times = [
            int(self._alone[level])
            for level in range(than.base, len(self._fitting))
            if not self._fitting[level] and self._alone[level] > than.ticks
        ]
        return self.at(min(times), than.base) if times else None

    def at(self, ticks: int, base: int) -> Target:
        """The target of a given length."""
        ticks = min(ticks, NO_LIMIT)
        starts = [len(self._items)] * base
        for level in range(base, len(self._items.sizes)):
            first = _first(self._ascending[level], ticks - self._overhead[level])
            starts.append(max(first, self._fitting[level]))
        return Target(ticks, base, tuple(starts))

    def _suffices(self, target: Target) -> bool:
        spans = target.spans(len(self._items))
        if spans[-1][0] > 0:
            return False
        work = 0
        for level, (start, end) in enumerate(spans):
            work += int(self._work[level][end] - self._work[level][start])
            if level > target.base:  # large groups hold few sequences: each brings its own overhead
                extra = self._overhead[level] * self._items.sizes[level]
                work += (end - start) * extra
        return work <= self._ranks * target.ticks


def _rows(table: IntArray) -> list[list[int]] | list[IntArray]:
    return table.tolist() if table.shape[1] <= _FEW else list(table)


def _first(ascending: list[int] | IntArray, limit: int) -> int:
    """The first of the sequences (longest first) that is within the limit."""
    if isinstance(ascending, list):
        return len(ascending) - bisect_right(ascending, limit)
    return len(ascending) - int(ascending.searchsorted(limit, side="right"))


@dataclass(frozen=True)
class MicrobatchRequest:
    """What is wanted of one microbatch: the sequences meant for it, and shorter ones for holes.

    Holes are worth filling below ``share`` tokens of all ranks.
    """

    batch: Batch
    items: Items
    spare: Items
    share: int

    @property
    def dearest(self) -> int:
        """Ticks of a group with its whole token budget filled, at the size the longest one needs.

        With sequences of that kind, or with the shortest: across nodes those cost more per token.
        """
        items, budget = self.items, self.batch.domain.max_tokens_per_rank
        level = int(np.argmax(items.tokens[:, 0] <= budget))
        last = self.spare if len(self.spare) else items
        kinds = ((items, 0), (last, -1))
        full = (int(of.ticks[level, i]) * budget // int(of.tokens[level, i]) for of, i in kinds)
        return max(full) + int(items.overhead[level])


def pack_microbatch(
    order: MicrobatchRequest, targets: Targets, aim: Target, *, strict: bool = False
) -> Packing:
    """Pack as many of the sequences as fit, aiming at a length.

    With ``strict``, sequences that do not fit within about that length are left for later.
    """
    items, spare, domain = order.items, order.spare, order.batch.domain
    target, level = _opened(targets, items, aim, domain, len(items) + len(spare))
    filling, queue = _Filling(level, items.overhead, domain), np.arange(len(items))
    for factor in (*_LIMITS, None):
        if strict and filling.members and factor != _LIMITS[0]:
            break
        limit = NO_LIMIT if factor is None else int(target.ticks * factor)
        queue = filling.deal(items, queue, limit)
        if not len(queue):
            break
    if len(spare):
        queue, sizes = np.arange(len(spare)), np.array(spare.sizes)[level]
        most = max(target.ticks, 0 if strict else order.dearest)
        for limit in (int(filling.time.max()), most):
            missing = order.share - int((filling.filled * sizes).sum())
            if missing <= 0 and filling.count.all():
                break
            queue = filling.deal(spare, queue, limit)
    used = filling.count > 0
    number = np.cumsum(used) - 1
    members, home = np.concatenate(filling.members), number[np.concatenate(filling.home)]
    return assembled(order.batch, items.sizes, level[used], members, home)


def _opened(
    targets: Targets, items: Items, target: Target, domain: Domain, most: int
) -> tuple[Target, IntArray]:
    """The groups to open: their levels, largest first, and the target that made them fit.

    Of the smallest size there are no more than ``most``, so that none stay empty for sure.
    """
    base, sizes = target.base, items.sizes
    for _ in range(_ATTEMPTS):
        work, needed = _wanted(items, target, domain)
        by_time = -(-work // max(1, target.ticks)) * sizes[base]
        larger = sum(needed[level] * sizes[level] for level in range(base + 1, len(sizes)))
        if larger + by_time <= domain.ranks:
            break
        target = targets.at(int(target.ticks * _LONGER) + 1, base)
    counts = [0] * len(sizes)
    free = domain.ranks
    for level in range(len(sizes) - 1, base, -1):
        counts[level] = min(needed[level], free // sizes[level])
        free -= counts[level] * sizes[level]
    counts[base] = min(free // sizes[base], most)
    return target, np.repeat(np.arange(len(sizes))[::-1], counts[::-1])


def _wanted(items: Items, target: Target, domain: Domain) -> tuple[int, list[int]]:
    """Ticks of the sequences that take the smallest size, and groups that are needed of each."""
    needed, work = [], 0
    for level, (start, end) in enumerate(target.spans(len(items))):
        ticks = int(items.ticks[level, start:end].sum())
        tokens = int(items.tokens[level, start:end].sum())
        groups = max(-(-ticks // max(1, target.ticks)), -(-tokens // domain.max_tokens_per_rank))
        if domain.max_sequences is not None:
            groups = max(groups, -(-(end - start) // domain.max_sequences))
        needed.append(groups)
        work = ticks if level == target.base else work
    return work, needed


class _Filling:
    """Groups that are being filled, all of them at their own size.

    Attributes:
        level: Per group, the index of its size.
        time, filled, count: Ticks, tokens per rank, and sequences of each group.
        members, home: Places in the batch's order of what was dealt, and its groups.
    """

    def __init__(self, level: IntArray, overhead: IntArray, domain: Domain) -> None:
        self.level, self.time = level, overhead[level]
        self.filled, self.count = (np.zeros(len(level), np.int64) for _ in range(2))
        self.members: list[IntArray] = []
        self.home: list[IntArray] = []
        self._budget = domain.max_tokens_per_rank
        self._most = NO_LIMIT if domain.max_sequences is None else domain.max_sequences

    def deal(self, items: Items, queue: IntArray, limit: int) -> IntArray:
        """Give each group the longest sequence that fits, round by round, until none fits any more.

        The ``queue`` has indices into ``items``, longest first; what is left of it is returned.
        """
        ceiling = min(limit, NO_LIMIT)
        while len(queue):
            room = ceiling - self.time, self._budget - self.filled, self._most - self.count
            takers, places = _round(self.level, items, queue, room)
            if not len(takers):
                break
            taken, level = queue[places], self.level[takers]
            self.time[takers] += items.ticks[level, taken].sum(axis=0)
            self.filled[takers] += items.tokens[level, taken].sum(axis=0)
            self.count[takers] += len(taken)
            self.members.append(items.members[taken.ravel()])
            self.home.append(np.tile(takers, len(taken)))
            keep = np.ones(len(queue), bool)
            keep[places] = False
            queue = queue[keep]
        return queue


def _round(
    levels: IntArray, items: Items, queue: IntArray, room: tuple[IntArray, IntArray, IntArray]
) -> tuple[IntArray, IntArray]:
    """Who takes what: groups, and the places in the queue they take, one row per layer.

    The group with the most room takes first. Where a sequence is too long for the next group, it is
    left, and that group takes the first that fits.
    """
    time_left, tokens_left, count_left = room
    ticks, tokens = items.ticks[:, queue[-1]][levels], items.tokens[:, queue[-1]][levels]
    able = (ticks <= time_left) & (tokens <= tokens_left) & (count_left > 0)
    takers = able.nonzero()[0]
    if not len(takers):
        return takers, takers[None, :]
    level, start = levels[takers], np.empty_like(takers)
    for size in np.bincount(level).nonzero()[0].tolist():
        here = (level == size).nonzero()[0]
        fitting = np.minimum(
            items.ticks[size, ::-1].searchsorted(time_left[takers[here]], side="right"),
            items.tokens[size, ::-1].searchsorted(tokens_left[takers[here]], side="right"),
        )
        start[here] = queue.searchsorted(len(items) - fitting)
    order = np.lexsort((-time_left[takers], start))
    takers, start = takers[order], start[order]
    steps = np.arange(len(takers))
    places = np.maximum.accumulate(start - steps) + steps
    within = places < len(queue)
    takers, start, places = takers[within], start[within], places[within]
    if start[-1] > 0:
        return takers, places[None, :]
    # How many sequences like the first each group could take using at most half of its room.
    level, first = levels[takers], queue[0]
    by_time = time_left[takers] // np.maximum(1, items.ticks[level, first])
    by_tokens = tokens_left[takers] // items.tokens[level, first]
    layers = int(np.minimum(np.minimum(by_time, by_tokens), count_left[takers]).min()) // 2
    layers = max(1, min(layers, len(queue) // len(takers)))
    grid = np.arange(layers * len(takers)).reshape(-1, len(takers))
    grid[1::2] = grid[1::2, ::-1]  # back and forth, so that no group gets all the longer ones
    return takers, grid
