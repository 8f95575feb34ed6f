"""Dividing a batch by looking at every group for every sequence, longest first.

A sequence goes to the first group, smallest sizes first, in which it makes the microbatch no
longer; where there is none, to the one (open already, or new) in which it makes it longer by
least. How long a microbatch gets is then decided by the size of the group that the longest
sequence gets, and by whether others may take longer than it does. Both are tried, microbatch by
microbatch.

With squared length over size as the weight, the smallest size for the longest sequence and no
limit, this is the rule of upstream's packer (``next_hdp_group_packing_aware``). A planner that
also considers that plan is never worse than upstream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ringproof.reference.planning.bounds import least_tokens, least_work
from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import Domain, chains
from ringproof.reference.planning.pack import Packing, assembled

_FULL_ENOUGH = 0.998
_WEIGHT = 0.5
"""How much worse it is to leave a part of the token budget unused than to take that part longer."""
_NO_LIMIT = 1 << 256
"""No sum of squared lengths comes near it."""
_MOST_CHAINS = 6
_SAMPLES = 4
"""After so many microbatches only the chain of sizes that was best for the last one is tried."""


@dataclass(frozen=True)
class _Table:
    """The sequences of a batch for one chain of sizes, as lists: one is looked up at a time.

    Attributes:
        sizes: The chain.
        weights, tokens: By size and sequence.
        overhead: Weight of a group whatever is in it, by size.
        lowest: Per sequence, the smallest size (an index) that holds it.
        minus_weights, minus_tokens: The same negated: ascending, for `bisect`.
        budget, places: Tokens per rank, and sequences, that a group may hold.
        ranks: Of the domain.
    """

    sizes: tuple[int, ...]
    weights: list[list[int]]
    tokens: list[list[int]]
    overhead: list[int]
    lowest: list[int]
    minus_weights: list[list[int]]
    minus_tokens: list[list[int]]
    budget: int
    places: int
    ranks: int


@dataclass(slots=True)
class _Group:
    """A group that is being filled."""

    level: int
    weight: int
    tokens: int = 0
    members: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Filling:
    """A microbatch that is being filled: its groups by size, free ranks, and the heaviest group."""

    groups: list[list[_Group]]
    free: int
    heaviest: int = 0

    @property
    def members(self) -> list[int]:
        """All sequences in it."""
        return [item for level in self.groups for group in level for item in group.members]


def one_by_one(batch: Batch, domain: Domain, *, as_upstream: bool = False) -> tuple[Packing, ...]:
    """Microbatches, each filled from all that remains; the best filling of each is kept.

    Takes time proportional to sequences times groups, for each microbatch.

    Args:
        as_upstream: Follow upstream's rule instead; see above.
    """
    usable = [chain for chain in chains(domain.cp_sizes) if _holds(batch, domain, chain[-1])]
    tables = [_table(batch, domain, chain, as_upstream) for chain in usable[:_MOST_CHAINS]]
    worth = _Worth.of(batch, domain)
    queue = list(range(len(batch)))
    packings: list[Packing] = []
    while queue:
        if as_upstream:
            best = _filled(queue, tables[0], tables[0].lowest[queue[0]], _NO_LIMIT, worth)
        else:
            best = min((_best(queue, table, worth) for table in tables), key=_by_rating)
        packings.append(_packed(best.filling, best.table, batch, domain))
        queue = best.left
        if len(packings) >= _SAMPLES:
            tables = [best.table]
    return tuple(packings)


@dataclass(frozen=True)
class _Filled:
    """A filled microbatch, what is left for later ones, and how good that is; 1 is perfect."""

    rating: float
    table: _Table
    filling: _Filling
    left: list[int]


def _by_rating(filled: _Filled) -> float:
    return filled.rating


def _best(queue: Sequence[int], table: _Table, worth: _Worth) -> _Filled:
    """The best over sizes for the longest sequence; larger ones are tried while that helps."""
    longest = queue[0]
    best: _Filled | None = None
    for level in range(table.lowest[longest], len(table.sizes)):
        alone = table.weights[level][longest] + table.overhead[level]
        free = _filled(queue, table, level, _NO_LIMIT, worth)
        found = (
            [free]
            if free.filling.heaviest <= alone
            else [free, _filled(queue, table, level, alone, worth)]
        )
        better = min(found, key=_by_rating)
        if best is not None and better.rating >= best.rating:
            break
        best = better
    assert best is not None
    return best


def _filled(queue: Sequence[int], table: _Table, level: int, limit: int, worth: _Worth) -> _Filled:
    filling, left = _fill(queue, table, level, limit)
    return _Filled(worth.rating(filling, left), table, filling, left)


def _holds(batch: Batch, domain: Domain, size: int) -> bool:
    """Whether a group of that size holds the longest sequence."""
    return int(batch.tokens[batch.sizes.index(size), batch.kind[0]]) <= domain.max_tokens_per_rank


def _table(batch: Batch, domain: Domain, chain: tuple[int, ...], as_upstream: bool) -> _Table:
    items = batch.items(np.arange(len(batch)), chain)
    squares = [length * length for length in batch.lengths.tolist()]
    weights, overhead = items.ticks.tolist(), items.overhead.tolist()
    if as_upstream:  # times the largest size: whole numbers
        weights = [[square * (chain[-1] // size) for square in squares] for size in chain]
        overhead = [0] * len(chain)
    return _Table(
        chain,
        weights,
        items.tokens.tolist(),
        overhead,
        np.argmax(items.tokens <= domain.max_tokens_per_rank, axis=0).tolist(),
        [[-weight for weight in row] for row in weights],
        (-items.tokens).tolist(),
        domain.max_tokens_per_rank,
        domain.max_sequences or len(batch),
        domain.ranks,
    )


def _fill(
    queue: Sequence[int], table: _Table, level: int, limit: int
) -> tuple[_Filling, list[int]]:
    """Fill a microbatch; returns it and the sequences that found no place.

    Args:
        level: Size (an index) of the group that the first sequence gets.
        limit: Weight that no group may exceed.
    """
    now = _Filling([[] for _ in table.sizes], table.ranks)
    _add(now, table, queue[0], _open(now, table, level))
    left: list[int] = []
    place = 1
    while place < len(queue):
        group = _somewhere(now, table, queue[place], limit)
        after = place + 1
        if group is None:
            after = max(after, bisect_left(queue, _first_that_may_fit(now, table, limit)))
            left += queue[place:after]
        else:
            _add(now, table, queue[place], group)
        place = after
    return now, left


def _first_that_may_fit(now: _Filling, table: _Table, limit: int) -> int:
    """All longer sequences fit into no group: too many tokens, or too heavy for the limit."""
    found = len(table.lowest)
    for level, groups in enumerate(now.groups):
        empty = now.free >= table.sizes[level]
        if not groups and not empty:
            continue
        tokens = 0 if empty else min([group.tokens for group in groups])
        weight = table.overhead[level] if empty else min([group.weight for group in groups])
        short = bisect_left(table.minus_tokens[level], tokens - table.budget)
        light = bisect_left(table.minus_weights[level], weight - limit)
        found = min(found, max(short, light))
    return found


def _open(now: _Filling, table: _Table, level: int) -> _Group:
    group = _Group(level, table.overhead[level])
    now.groups[level].append(group)
    now.free -= table.sizes[level]
    return group


def _add(now: _Filling, table: _Table, item: int, group: _Group) -> None:
    group.weight += table.weights[group.level][item]
    group.tokens += table.tokens[group.level][item]
    if len(group.members) + 1 == table.places:
        group.tokens = table.budget  # nothing more fits
    group.members.append(item)
    now.heaviest = max(now.heaviest, group.weight)


def _somewhere(now: _Filling, table: _Table, item: int, limit: int) -> _Group | None:
    """A group for a sequence, see the module; ``None`` where it fits nowhere."""
    for level in range(table.lowest[item], len(table.sizes)):
        room = table.budget - table.tokens[level][item]
        below = now.heaviest - table.weights[level][item]
        for group in now.groups[level]:
            if group.weight <= below and group.tokens <= room:
                return group
        if now.free >= table.sizes[level] and table.overhead[level] <= below:
            return _open(now, table, level)
    return _least_longer(now, table, item, limit)


def _least_longer(now: _Filling, table: _Table, item: int, limit: int) -> _Group | None:
    """The group in which a sequence makes the microbatch longer by least, within the limit."""
    best: _Group | None = None
    new: int | None = None
    least = limit + 1
    for level in range(table.lowest[item], len(table.sizes)):
        room = table.budget - table.tokens[level][item]
        weight = table.weights[level][item]
        for group in now.groups[level]:
            if group.weight + weight < least and group.tokens <= room:
                best, new, least = group, None, group.weight + weight
        if now.free >= table.sizes[level] and table.overhead[level] + weight < least:
            new, least = level, table.overhead[level] + weight
    return best if new is None else _open(now, table, new)


@dataclass(frozen=True)
class _Worth:
    """What makes a filling good: `work` and `tokens` are the least of each sequence."""

    work: list[int]
    tokens: list[int]
    ranks: int
    budget: int
    overhead: int

    @classmethod
    def of(cls, batch: Batch, domain: Domain) -> _Worth:
        """Of the sequences of a batch."""
        work, tokens = least_work(batch, domain), least_tokens(batch, domain)
        return cls(
            work[batch.kind].tolist(),
            tokens[batch.kind].tolist(),
            domain.ranks,
            domain.ranks * domain.max_tokens_per_rank,
            batch.microbatch_overhead,
        )

    def rating(self, filling: _Filling, left: Sequence[int]) -> float:
        """Time over the ideal, and the part of the budget that is not used; 1 is perfect."""
        members = filling.members
        ideal = sum(self.work[item] for item in members) / self.ranks
        part = sum(self.tokens[item] for item in members) / self.budget
        missing = max(0.0, _FULL_ENOUGH - part) if left else 0.0
        return (filling.heaviest + self.overhead) / max(ideal, 1.0) + _WEIGHT * missing


def _packed(filling: _Filling, table: _Table, batch: Batch, domain: Domain) -> Packing:
    groups = [group for level in filling.groups for group in level]
    members = np.array(filling.members)
    home = np.repeat(np.arange(len(groups)), [len(group.members) for group in groups])
    by_length = np.argsort(members, kind="stable")
    members, home = members[by_length], home[by_length]
    level = np.array([group.level for group in groups])
    return assembled(batch.items(members, table.sizes), home, level, domain, even=True)
