"""The groups of one microbatch: joining them, widening them, and laying them on ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from ringproof.reference.planning.costs import Batch, SizeTable
from ringproof.reference.planning.plan import Group, Microbatch


@dataclass(slots=True)
class PackedGroup:
    """A group without ranks.

    Attributes:
        level: Level of its size in the table.
        time: Cost of the group and its sequences.
        members: The sequences, by their places in the batch.
        rows: Tokens per rank, known while the group is filled.
    """

    level: int
    time: int
    members: list[int] = field(default_factory=list)
    rows: int = 0


@dataclass(frozen=True)
class PackedMicrobatch:
    """A microbatch whose groups have no ranks yet.

    Attributes:
        table: The group sizes and what they cost.
        groups: The groups, in no particular order.
    """

    table: SizeTable
    groups: list[PackedGroup]

    @property
    def time(self) -> int:
        """Cost until the last group is done."""
        return max(group.time for group in self.groups)

    @property
    def tokens(self) -> int:
        """Tokens of all groups together, padding included."""
        rows, sizes = self.table.rows, self.table.sizes
        return sum([sizes[one.level] * rows(one.level, one.members) for one in self.groups])

    @property
    def idle(self) -> int:
        """Ranks that no group could grow into."""
        sizes = self.table.sizes
        return self.table.domain.ranks - sum(sizes[group.level] for group in self.groups)


def use_all_ranks(table: SizeTable, groups: list[PackedGroup]) -> PackedMicrobatch:
    """Let groups grow into idle ranks, then join long groups with short ones."""
    packed = PackedMicrobatch(table, groups)
    if packed.idle:
        _widen(packed)
    return PackedMicrobatch(table, _joined(packed))


def _widen(packed: PackedMicrobatch) -> None:
    """Let groups grow into ranks that have nothing to do, the longest first.

    A group that would take longer for it (its communication grows) grows only when no other can. In
    the end fewer ranks are free than any of the groups could grow by.
    """
    table, free = packed.table, packed.idle
    sizes = table.sizes
    growth = [after - size for size, after in itertools.pairwise(sizes)]
    while True:
        able = [g for g in packed.groups if g.level < len(growth) and growth[g.level] <= free]
        if not able:
            return
        limit = packed.time
        wider = [(table.time(group.level + 1, group.members), group) for group in able]
        faster = [pair for pair in wider if pair[0] <= limit]
        if faster:
            faster.sort(key=lambda pair: -pair[1].time)
        else:
            faster = [min(wider, key=lambda pair: pair[0])]
        for time, group in faster:
            if growth[group.level] <= free:
                free -= growth[group.level]
                group.level, group.time = group.level + 1, time


def _joined(packed: PackedMicrobatch) -> list[PackedGroup]:
    """Join groups that take too long with those that take the shortest, where both gain.

    Level by level: the longest with the shortest, the next with the next, each into one group of
    the next size, if that is shorter than the longer one was and fits.
    """
    table, groups = packed.table, packed.groups
    sizes, domain = table.sizes, table.domain
    work = sum([group.time * sizes[group.level] for group in groups])
    goal = work / domain.ranks  # no group needs to be shorter than the mean
    if packed.time <= goal:
        return groups
    for level in range(len(sizes) - 1):
        same = [group for group in groups if group.level == level]
        same.sort(key=attrgetter("time"), reverse=True)
        factor = sizes[level + 1] // sizes[level]
        gone: set[int] = set()
        for number, head in enumerate(same[: len(same) // factor]):
            if head.time <= goal:
                break
            end = len(same) - number * (factor - 1)
            partners = same[end - factor + 1 : end]
            members = [place for group in (head, *partners) for place in group.members]
            time = table.time(level + 1, members)
            if time < head.time and _fits(table, level + 1, members):
                head.level, head.members, head.time = level + 1, members, time
                gone.update(map(id, partners))
        if gone:
            groups = [group for group in groups if id(group) not in gone]
    return groups


def _fits(table: SizeTable, level: int, members: list[int]) -> bool:
    most = table.domain.max_sequences or len(members)
    rows = table.rows(level, members)
    return len(members) <= most and rows <= table.domain.max_tokens_per_rank


def halved(packed: PackedMicrobatch) -> list[PackedMicrobatch]:
    """Split a microbatch: every other group by time, or every other sequence of its only group."""
    table = packed.table
    if len(packed.groups) > 1:
        ordered = sorted(packed.groups, key=lambda group: -group.time)
        parts = [ordered[::2], ordered[1::2]]
    else:
        (only,) = packed.groups
        halves = (sorted(only.members)[start::2] for start in (0, 1))
        parts = [[PackedGroup(only.level, table.time(only.level, half), half)] for half in halves]
    for part in parts:
        _widen(PackedMicrobatch(table, part))
    return [PackedMicrobatch(table, part) for part in parts]


def side_by_side(packed: PackedMicrobatch) -> list[int]:
    """The first rank of each group, largest groups first, so that every group is aligned."""
    first, offsets = 0, [0] * len(packed.groups)
    for number in sorted(range(len(offsets)), key=lambda number: -packed.groups[number].level):
        offsets[number] = first
        first += packed.table.sizes[packed.groups[number].level]
    return offsets


def run_ahead(
    microbatches: Sequence[PackedMicrobatch], batch: Batch
) -> tuple[list[list[int]], list[int]]:
    """The first rank of each group, by microbatch, and when each rank is done if it runs ahead.

    A long group gets ranks that are free early, so that ranks that run ahead wait little. Each rank
    begins its next microbatch when its own group has ended, as `simulate` has it under ``async``.
    Largest groups come first, so that aligned blocks of the smaller sizes are left whole.
    """
    clocks = [0] * batch.domain.ranks
    offsets = []
    for packed in microbatches:
        sizes, groups = packed.table.sizes, packed.groups
        found, free, width = [0] * len(groups), [0], len(clocks)  # blocks of `width` free ranks
        for level in range(len(sizes) - 1, -1, -1):
            size = sizes[level]
            free = [start for block in free for start in range(block, block + width, size)]
            width = size
            here = [number for number, group in enumerate(groups) if group.level == level]
            if not here:
                continue
            here.sort(key=lambda number: -groups[number].time)
            ready = {start: max(clocks[start : start + size]) for start in free}
            free.sort(key=ready.__getitem__)
            for number, start in zip(here, free, strict=False):
                found[number] = start
                clocks[start : start + size] = [ready[start] + groups[number].time] * size
            free = sorted(free[len(here) :])
        clocks = [clock + batch.microbatch_overhead for clock in clocks]
        offsets.append(found)
    return offsets, clocks


def on_ranks(packed: PackedMicrobatch, offsets: Sequence[int], batch: Batch) -> Microbatch:
    """A microbatch of the plan: groups by rank, ids of sequences, idle ranks as dummies."""
    sizes, groups, position = packed.table.sizes, list[Group](), 0
    ids = batch.order
    for first, group in sorted(zip(offsets, packed.groups, strict=True), key=lambda pair: pair[0]):
        if position < first:
            groups += dummies(position, first, sizes)
        size = sizes[group.level]
        groups.append(Group(first, size, tuple(map(ids.__getitem__, group.members))))
        position = first + size
    groups += dummies(position, batch.domain.ranks, sizes)
    return Microbatch(tuple(groups))


def dummies(start: int, end: int, sizes: tuple[int, ...]) -> list[Group]:
    """The fewest aligned groups that cover idle ranks."""
    found = []
    while start < end:
        size = max(size for size in sizes if start % size == 0 and start + size <= end)
        found.append(Group(start, size, ()))
        start += size
    return found
