"""The groups of one microbatch: joining them, widening them, and laying them on ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.plan import Group, Microbatch

_EVEN_ENOUGH = 1.001
"""Groups within this factor of the mean time are left alone."""


@dataclass(frozen=True)
class Groups:
    """Groups and the sequences in them, as sums; arrays are replaced, never changed.

    Attributes:
        level: Per group, the index of its size.
        ticks, tokens: Per size (row) and group: what the group's sequences would cost a rank, and
            the tokens it would hold, if the group had that size. Row `level` is what it has.
        count: Sequences per group.
        overhead: Ticks of a group whatever is in it, by size; part of `ticks`.
    """

    level: IntArray
    ticks: IntArray
    tokens: IntArray
    count: IntArray
    overhead: IntArray

    def __len__(self) -> int:
        return len(self.level)

    @cached_property
    def time(self) -> IntArray:
        """Ticks per group at its own size."""
        return self.ticks[self.level, np.arange(len(self.level))]

    def only(self, keep: npt.NDArray[np.bool_]) -> Groups:
        """Some of the groups."""
        ticks, tokens = self.ticks[:, keep], self.tokens[:, keep]
        return Groups(self.level[keep], ticks, tokens, self.count[keep], self.overhead)


@dataclass(frozen=True)
class Packing:
    """A microbatch.

    Attributes:
        groups: The groups, in no particular order.
        sizes: The chain of group sizes that ``groups.level`` counts in.
        members: Places in the batch's order of the sequences placed.
        home: For each of them, its group.
        idle: Ranks that no group could grow into.
    """

    groups: Groups
    sizes: tuple[int, ...]
    members: IntArray
    home: IntArray
    idle: int

    @cached_property
    def ticks(self) -> int:
        """Time until the last group is done."""
        return int(self.groups.time.max())


def assembled(
    batch: Batch,
    sizes: tuple[int, ...],
    level: IntArray,
    members: IntArray,
    home: IntArray,
    *,
    even: bool = True,
) -> Packing:
    """The microbatch of sequences whose groups are known, none of them empty.

    The groups grow into idle ranks and, with ``even``, are joined so that all end together.
    Arguments as for `Packing`; ``level`` is that of each group.
    """
    ranks, domain = np.array(sizes), batch.domain
    groups = _summed(batch, sizes, level, members, home)
    groups = _widened(groups, sizes, domain.ranks - int(ranks[level].sum()))
    if even:
        groups, moved = merge(groups, sizes, domain)
        home = moved[home]
    return Packing(groups, sizes, members, home, domain.ranks - int(ranks[groups.level].sum()))


def repeated(batch: Batch, members: IntArray, old: Packing) -> Packing:
    """The packing of other sequences in the same groups, each in the place of another."""
    level = old.groups.level
    groups = _summed(batch, old.sizes[: int(level.max()) + 1], level, members, old.home)
    return replace(old, groups=groups, members=members)


def _summed(
    batch: Batch, sizes: tuple[int, ...], level: IntArray, members: IntArray, home: IntArray
) -> Groups:
    """The groups of sequences; for sizes below the smallest one in use the sums stay zero."""
    start = int(level.min())
    by_group, count = np.argsort(home, kind="stable"), np.bincount(home)
    items = batch.items(members[by_group], sizes[start:])
    starts = np.cumsum(count) - count
    ticks, tokens = (np.zeros((len(sizes), len(count)), np.int64) for _ in range(2))
    np.add.reduceat(items.ticks, starts, axis=1, out=ticks[start:])
    np.add.reduceat(items.tokens, starts, axis=1, out=tokens[start:])
    overhead = batch.overhead[batch.rows(sizes)]
    return Groups(level, ticks + overhead[:, None], tokens, count, overhead)


def _widened(groups: Groups, sizes: Sequence[int], free: int) -> Groups:
    """Let groups grow into ranks that have nothing to do, the longest first.

    A group that would take longer for it (its communication grows) grows only when no other can. In
    the end fewer ranks are free than any of the groups could grow by.
    """
    if free <= 0:
        return groups
    growth = np.diff(np.array(sizes), append=np.iinfo(np.int64).max // 2)
    level, time = groups.level.copy(), groups.time.copy()
    while free > 0:
        able = np.flatnonzero(growth[level] <= free)
        if not len(able):
            break
        following = groups.ticks[level[able] + 1, able]
        order = able[following <= max(int(time.max()), 0)]
        if len(order):
            order = order[np.argsort(-time[order], kind="stable")]
            chosen = order[np.cumsum(growth[level[order]]) <= free]
        else:
            chosen = able[following.argmin()][None]
        free -= int(growth[level[chosen]].sum())
        level[chosen] += 1
        time[chosen] = groups.ticks[level[chosen], chosen]
    return replace(groups, level=level)


def merge(groups: Groups, sizes: Sequence[int], domain: Domain) -> tuple[Groups, IntArray]:
    """Join groups that take too long with those that take the shortest, where both gain.

    Level by level: the longest with the shortest, the next with the next, each into one group of
    the next size, if that is shorter than the longer one was and fits. Also returned is, for each
    old group, the new one that has its sequences.
    """
    new_home = np.arange(len(groups))
    rank_ticks = int((groups.time * np.array(sizes)[groups.level]).sum())
    goal = int(rank_ticks / domain.ranks * _EVEN_ENOUGH)
    if int(groups.time.max()) <= goal:
        return groups, new_home
    for level in range(len(sizes) - 1):
        teams = _teams(groups, level, sizes[level + 1] // sizes[level], goal, domain)
        if len(teams):
            groups, moved = _joined(groups, teams, level + 1)
            new_home = moved[new_home]
    return groups, new_home


def _teams(groups: Groups, level: int, factor: int, goal: int, domain: Domain) -> IntArray:
    """The groups of one size to join, ``factor`` of them in each row."""
    same = np.flatnonzero(groups.level == level)
    half = len(same) // factor
    time = groups.ticks[level, same]
    if not half or int(time.max()) <= goal:
        return same[:0]
    order = np.argsort(-time, kind="stable")
    same, time = same[order], time[order][:half]
    partners = same[::-1][: half * (factor - 1)].reshape(half, factor - 1)
    teams = np.concatenate((same[:half, None], partners), axis=1)
    together = groups.ticks[level + 1][teams].sum(axis=1)
    together -= (factor - 1) * groups.overhead[level + 1]
    useful = (time > goal) & (together < time)
    useful &= groups.tokens[level + 1][teams].sum(axis=1) <= domain.max_tokens_per_rank
    if domain.max_sequences is not None:
        useful &= groups.count[teams].sum(axis=1) <= domain.max_sequences
    return teams[useful]


def _joined(groups: Groups, teams: IntArray, level: int) -> tuple[Groups, IntArray]:
    """Each row of ``teams`` becomes one group; the others keep their order."""
    heads, rest = teams[:, 0], teams[:, 1:]
    keep = np.ones(len(groups), bool)
    keep[rest] = False
    number = np.cumsum(keep) - 1
    number[rest] = number[heads][:, None]
    joined, now = number[heads], groups.only(keep)
    once_too_often = (teams.shape[1] - 1) * groups.overhead[:, None]
    now.ticks[:, joined] = groups.ticks[:, teams].sum(axis=2) - once_too_often
    now.tokens[:, joined] = groups.tokens[:, teams].sum(axis=2)
    now.count[joined] = groups.count[teams].sum(axis=1)
    now.level[joined] = level
    return now, number


def side_by_side(packing: Packing) -> IntArray:
    """The first rank of each group, largest groups first, so that every group is aligned."""
    sizes = np.array(packing.sizes)[packing.groups.level]
    order = np.argsort(-sizes, kind="stable")
    offsets = np.empty_like(sizes)
    offsets[order] = np.cumsum(sizes[order]) - sizes[order]
    return offsets


def run_ahead(packings: Sequence[Packing], batch: Batch) -> tuple[list[IntArray], IntArray]:
    """The first rank of each group, by microbatch, and when each rank is done if it runs ahead.

    A long group gets ranks that are free early, so that ranks that run ahead wait little. Each rank
    begins its next microbatch when its own group has ended, as `simulate` has it under
    ``async``; here for all groups of one size at a time. Largest groups come first, so that aligned
    blocks of the smaller sizes are left whole.
    """
    clocks = np.zeros(batch.domain.ranks, np.int64)
    offsets = []
    for packing in packings:
        groups, time = packing.groups, packing.groups.time
        first, free = np.zeros(len(groups), np.int64), np.ones(len(clocks), bool)
        ends = clocks.copy()
        for level in sorted(set(groups.level.tolist()), reverse=True):
            size = packing.sizes[level]
            here = np.flatnonzero(groups.level == level)
            here = here[np.argsort(-time[here], kind="stable")]
            blocks = np.flatnonzero(free.reshape(-1, size).all(axis=1))
            ready = clocks.reshape(-1, size)[blocks].max(axis=1)
            earliest = np.argsort(ready, kind="stable")[: len(here)]
            blocks = blocks[earliest]
            first[here] = blocks * size
            free.reshape(-1, size)[blocks] = False
            ends.reshape(-1, size)[blocks] = (ready[earliest] + time[here])[:, None]
        clocks = ends + batch.microbatch_overhead
        offsets.append(first)
    return offsets, clocks


def placed(packing: Packing, offsets: IntArray, batch: Batch) -> Microbatch:
    """A microbatch of the plan: groups by rank, ids of sequences, idle ranks as dummies."""
    by_group = np.argsort(packing.home, kind="stable")
    ids = batch.order[packing.members[by_group]].tolist()
    ends = np.cumsum(packing.groups.count).tolist()
    places = zip(offsets.tolist(), packing.groups.level.tolist(), [0, *ends], ends, strict=False)
    groups: list[Group] = []
    position = 0
    for first, level, start, end in sorted(places):
        groups += dummies(position, first, packing.sizes)
        groups.append(Group(first, packing.sizes[level], tuple(ids[start:end])))
        position = first + packing.sizes[level]
    groups += dummies(position, batch.domain.ranks, packing.sizes)
    return Microbatch(tuple(groups))


def dummies(start: int, end: int, sizes: tuple[int, ...]) -> list[Group]:
    """The fewest aligned groups that cover idle ranks."""
    found = []
    while start < end:
        size = max(size for size in sizes if start % size == 0 and start + size <= end)
        found.append(Group(start, size, ()))
        start += size
    return found
