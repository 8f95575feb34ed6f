"""The groups of one microbatch while they are being filled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringproof.reference.planning.costs import Items
from ringproof.reference.planning.domain import Domain, IntArray

NO_LIMIT = int(np.iinfo(np.int64).max) // 4
"""No sum of ticks comes near it, and adding to it does not overflow."""


@dataclass(frozen=True)
class Groups:
    """Groups and what is in them; arrays are replaced, never changed.

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

    @property
    def filled(self) -> IntArray:
        """Tokens per rank and group at its own size."""
        return self.tokens[self.level, np.arange(len(self.level))]

    def only(self, keep: npt.NDArray[np.bool_]) -> Groups:
        """Some of the groups."""
        return Groups(
            self.level[keep],
            self.ticks[:, keep],
            self.tokens[:, keep],
            self.count[keep],
            self.overhead,
        )


def empty_groups(level: IntArray, overhead: IntArray) -> Groups:
    """Groups with nothing in them."""
    shape = (len(overhead), len(level))
    ticks = np.broadcast_to(overhead[:, None], shape)
    count = np.zeros(len(level), np.int64)
    return Groups(level, ticks, np.zeros(shape, np.int64), count, overhead)


def deal(
    groups: Groups, items: Items, queue: IntArray, domain: Domain, *, limit: int | None
) -> tuple[Groups, list[tuple[IntArray, IntArray]], IntArray]:
    """Give each group the longest sequence that fits, round by round, until none fits any more.

    Args:
        queue: Indices into ``items``, ascending: longest first.
        limit: Ticks that no group may exceed; ``None`` for no limit.

    Returns:
        The groups, the placed (sequences, groups) pairs of each round, and what is left.
    """
    ceiling = NO_LIMIT if limit is None else min(limit, NO_LIMIT)
    most = NO_LIMIT if domain.max_sequences is None else domain.max_sequences
    ticks, tokens, count = groups.ticks.copy(), groups.tokens.copy(), groups.count.copy()
    now = Groups(groups.level, ticks, tokens, count, groups.overhead)
    pairs: list[tuple[IntArray, IntArray]] = []
    while len(queue):
        room = ceiling - now.time, domain.max_tokens_per_rank - now.filled, most - count
        takers, places = _round(now, items, queue, room)
        if not len(takers):
            break
        taken = queue[places]
        ticks[:, takers] += items.ticks[:, taken].sum(axis=1)
        tokens[:, takers] += items.tokens[:, taken].sum(axis=1)
        count[takers] += len(taken)
        pairs.append((taken.ravel(), np.tile(takers, len(taken))))
        keep = np.ones(len(queue), bool)
        keep[places] = False
        queue = queue[keep]
    return now, pairs, queue


def _round(
    groups: Groups, items: Items, queue: IntArray, room: tuple[IntArray, IntArray, IntArray]
) -> tuple[IntArray, IntArray]:
    """Who takes what: groups, and the places in the queue they take, one row per layer.

    The group with the most room takes first. Where a place is too long for the next group, it is
    left, and that group takes the first that fits.
    """
    time_left, tokens_left, count_left = room
    start = np.full(len(groups), len(queue))
    for level in set(groups.level.tolist()):
        here = ((groups.level == level) & (count_left > 0)).nonzero()[0]
        fitting = np.minimum(
            items.ticks[level, ::-1].searchsorted(time_left[here], side="right"),
            items.tokens[level, ::-1].searchsorted(tokens_left[here], side="right"),
        )
        start[here] = queue.searchsorted(len(items) - fitting)
    able = (start < len(queue)).nonzero()[0]
    takers = able[np.lexsort((-time_left[able], start[able]))]
    steps = np.arange(len(takers))
    places = np.maximum.accumulate(start[takers] - steps) + steps
    within = places < len(queue)
    takers, places = takers[within], places[within]
    if not len(takers) or start[takers[-1]] > 0:
        return takers, places[None, :]
    layers = _layers(groups, items, queue[0], takers, room)
    layers = min(layers, len(queue) // len(takers))
    grid = np.arange(max(1, layers) * len(takers)).reshape(-1, len(takers))
    grid[1::2] = grid[1::2, ::-1]  # back and forth, so that no group gets all the longer ones
    return takers, grid


def _layers(
    groups: Groups, items: Items, first: int, takers: IntArray, room: tuple[IntArray, ...]
) -> int:
    """How many sequences like the first each group could take using at most half of its room."""
    level = groups.level[takers]
    time_left, tokens_left, count_left = (left[takers] for left in room)
    by_time = time_left // np.maximum(1, items.ticks[level, first])
    by_tokens = tokens_left // items.tokens[level, first]
    return int(np.minimum(np.minimum(by_time, by_tokens), count_left).min()) // 2
