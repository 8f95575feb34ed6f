"""Lay the groups of each microbatch on ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.pack import Packing
from ringproof.reference.planning.plan import Group, Microbatch


def side_by_side(packing: Packing) -> IntArray:
    """The first rank of each group, largest groups first, so that every group is aligned."""
    sizes = np.array(packing.sizes)[packing.groups.level]
    order = np.argsort(-sizes, kind="stable")
    offsets = np.empty_like(sizes)
    offsets[order] = np.cumsum(sizes[order]) - sizes[order]
    return offsets


def laid_out(
    packings: Sequence[Packing], batch: Batch, ranks: int
) -> tuple[list[IntArray], IntArray]:
    """The first rank of each group, by microbatch, and when each rank is done if it runs ahead.

    A long group gets ranks that are free early, so that ranks that run ahead wait little. Each rank
    begins its next microbatch when its own group has ended, as `simulate` has it under
    ``async``; here for all groups of one size at a time.
    """
    clocks = np.zeros(ranks, np.int64)
    offsets = []
    for packing in packings:
        first, times = _first_ranks(packing, clocks), packing.groups.time
        for level in set(packing.groups.level.tolist()):
            here, size = np.flatnonzero(packing.groups.level == level), packing.sizes[level]
            grid, blocks = clocks.reshape(-1, size), first[here] // size
            grid[blocks] = (grid[blocks].max(axis=1) + times[here])[:, None]
        clocks += batch.microbatch_overhead
        offsets.append(first)
    return offsets, clocks


def _first_ranks(packing: Packing, clocks: IntArray) -> IntArray:
    """The first rank of each group.

    Largest groups come first, so that aligned blocks of the smaller sizes are left whole; of groups
    of one size the longest goes to the block that is free earliest.
    """
    offsets = np.zeros(len(packing.groups), np.int64)
    free = np.ones(len(clocks), bool)
    time = packing.groups.time
    for level in sorted(set(packing.groups.level.tolist()), reverse=True):
        size = packing.sizes[level]
        here = np.flatnonzero(packing.groups.level == level)
        here = here[np.argsort(-time[here], kind="stable")]
        blocks = np.flatnonzero(free.reshape(-1, size).all(axis=1))
        ready = clocks.reshape(-1, size)[blocks].max(axis=1)
        blocks = blocks[np.argsort(ready, kind="stable")][: len(here)]
        offsets[here] = blocks * size
        free.reshape(-1, size)[blocks] = False
    return offsets


def placed(packing: Packing, offsets: IntArray, batch: Batch, ranks: int) -> Microbatch:
    """A microbatch of the plan: groups by rank, ids of sequences, idle ranks as dummies."""
    by_group = np.argsort(packing.home, kind="stable")
    ids = batch.order[packing.members[by_group]].tolist()
    ends = np.cumsum(packing.groups.count).tolist()
    starts = [0, *ends]
    groups: list[Group] = []
    position = 0
    for index in np.argsort(offsets, kind="stable").tolist():
        first, size = int(offsets[index]), packing.sizes[packing.groups.level[index]]
        groups += dummies(position, first, packing.sizes)
        groups.append(Group(first, size, tuple(ids[starts[index] : ends[index]])))
        position = first + size
    groups += dummies(position, ranks, packing.sizes)
    return Microbatch(tuple(groups))


def dummies(start: int, end: int, sizes: tuple[int, ...]) -> list[Group]:
    """The fewest aligned groups that cover idle ranks."""
    found = []
    while start < end:
        size = max(size for size in sizes if start % size == 0 and start + size <= end)
        found.append(Group(start, size, ()))
        start += size
    return found
