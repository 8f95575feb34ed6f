"""The groups of one microbatch: dealing sequences to them, joining them, and widening them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ringproof.reference.planning.costs import Items
from ringproof.reference.planning.domain import Domain, IntArray

NO_LIMIT = int(np.iinfo(np.int64).max) // 4
"""No sum of ticks comes near it, and adding to it does not overflow."""
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

    @property
    def time(self) -> IntArray:
        """Ticks per group at its own size."""
        return self.ticks[self.level, np.arange(len(self.level))]

    def only(self, keep: npt.NDArray[np.bool_]) -> Groups:
        """Some of the groups."""
        return Groups(
            self.level[keep],
            self.ticks[:, keep],
            self.tokens[:, keep],
            self.count[keep],
            self.overhead,
        )


@dataclass(frozen=True)
class Open:
    """Groups that are being filled, all of them at their own size; arrays are never changed.

    Attributes:
        level: Per group, the index of its size.
        time, filled: Ticks and tokens per rank.
        count: Sequences.
    """

    level: IntArray
    time: IntArray
    filled: IntArray
    count: IntArray

    def __len__(self) -> int:
        return len(self.level)


def deal(
    groups: Open, items: Items, queue: IntArray, domain: Domain, *, limit: int | None
) -> tuple[Open, list[tuple[IntArray, IntArray]], IntArray]:
    """Give each group the longest sequence that fits, round by round, until none fits any more.

    Returns:
        The groups, the placed (sequences, groups) pairs of each round, and what is left of the
        ``queue``, which has indices into ``items``, longest first.
    """
    ceiling = NO_LIMIT if limit is None else min(limit, NO_LIMIT)
    most = NO_LIMIT if domain.max_sequences is None else domain.max_sequences
    level = groups.level
    time, filled, count = groups.time.copy(), groups.filled.copy(), groups.count.copy()
    pairs: list[tuple[IntArray, IntArray]] = []
    while len(queue):
        room = ceiling - time, domain.max_tokens_per_rank - filled, most - count
        takers, places = _round(level, items, queue, room)
        if not len(takers):
            break
        taken = queue[places]
        time[takers] += items.ticks[level[takers], taken].sum(axis=0)
        filled[takers] += items.tokens[level[takers], taken].sum(axis=0)
        count[takers] += len(taken)
        pairs.append((taken.ravel(), np.tile(takers, len(taken))))
        keep = np.ones(len(queue), bool)
        keep[places] = False
        queue = queue[keep]
    return Open(level, time, filled, count), pairs, queue


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
    layers = _layers(levels[takers], items, queue[0], takers, room)
    layers = min(layers, len(queue) // len(takers))
    grid = np.arange(max(1, layers) * len(takers)).reshape(-1, len(takers))
    grid[1::2] = grid[1::2, ::-1]  # back and forth, so that no group gets all the longer ones
    return takers, grid


def _layers(
    level: IntArray, items: Items, first: int, takers: IntArray, room: tuple[IntArray, ...]
) -> int:
    """How many sequences like the first each group could take using at most half of its room."""
    time_left, tokens_left, count_left = (left[takers] for left in room)
    by_time = time_left // np.maximum(1, items.ticks[level, first])
    by_tokens = tokens_left // items.tokens[level, first]
    return int(np.minimum(np.minimum(by_time, by_tokens), count_left).min()) // 2


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
        groups, moved = _merge_level(groups, level, sizes[level + 1] // sizes[level], goal, domain)
        new_home = new_home if moved is None else moved[new_home]
    return groups, new_home


def _merge_level(
    groups: Groups, level: int, factor: int, goal: int, domain: Domain
) -> tuple[Groups, IntArray | None]:
    """The groups, and the new one of each old one; ``None`` where nothing was joined."""
    same = np.flatnonzero(groups.level == level)
    half = len(same) // factor
    time = groups.ticks[level, same]
    if not half or int(time.max()) <= goal:
        return groups, None
    order = np.argsort(-time, kind="stable")
    same, time = same[order], time[order][:half]
    heads = same[:half]
    partners = same[::-1][: half * (factor - 1)].reshape(half, factor - 1)
    teams = np.concatenate((heads[:, None], partners), axis=1)
    count = groups.count[teams].sum(axis=1)
    together = groups.ticks[level + 1][teams].sum(axis=1)
    together -= (factor - 1) * groups.overhead[level + 1]
    useful = (time > goal) & (together < time)
    useful &= groups.tokens[level + 1][teams].sum(axis=1) <= domain.max_tokens_per_rank
    if domain.max_sequences is not None:
        useful &= count <= domain.max_sequences
    teams = teams[useful]
    if not len(teams):
        return groups, None
    return _joined(groups, teams, level + 1)


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


def widen(groups: Groups, sizes: Sequence[int], free: int) -> Groups:
    """Let groups, none of them empty, grow into ranks that have nothing to do: the longest first.

    A group that would take longer for it (its communication grows) grows only when no other can. In
    the end fewer ranks are free than any of the groups could grow by.
    """
    if free <= 0:
        return groups
    growth = np.diff(np.array(sizes), append=np.iinfo(np.int64).max // 2)
    level, time = groups.level.copy(), groups.time
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
