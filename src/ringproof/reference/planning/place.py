"""Groups onto ranks: aligned offsets, and for ranks that run ahead the least busy ones."""

from __future__ import annotations

import numpy as np

from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.pack import Packing
from ringproof.reference.planning.plan import Group, Microbatch


def first_ranks(packing: Packing, clocks: IntArray) -> IntArray:
    """The first rank of each group.

    Largest groups first, so that aligned blocks of the smaller sizes are left whole; among groups
    of one size the longest goes to the block that is free earliest.

    Args:
        clocks: Ticks at which each rank is free, shape ``(ranks,)``.
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
    ids = batch.order[packing.members[by_group]]
    ends = np.cumsum(packing.groups.count)
    everything = ids.tolist()
    sizes = np.array(packing.sizes)[packing.groups.level]
    groups = []
    position = 0
    for index in np.argsort(offsets, kind="stable").tolist():
        first, size, end = int(offsets[index]), int(sizes[index]), int(ends[index])
        groups += dummies(position, first, packing.sizes)
        start = end - int(packing.groups.count[index])
        groups.append(Group(first, size, tuple(everything[start:end])))
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
