"""Find how short a microbatch could be, and which group size each sequence needs for that."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from ringproof.reference.planning.costs import Items
from ringproof.reference.planning.domain import Domain, IntArray
from ringproof.reference.planning.groups import NO_LIMIT

_FEW = 512
"""Up to so many sequences, single numbers are searched in lists: 0.2 us (arrays: 1.3 us). For more,
making the lists takes longer."""
_PRECISION = 500
"""The target is found to one part in this; packing rounds far more."""


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
        self._domain = domain
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
        high = int(self._work[base][-1]) // self._domain.ranks + int(self._alone[base]) + 1
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
        count, overhead = len(self._items), self._overhead
        starts = [count] * base
        for level in range(base, len(self._items.sizes)):
            first = _first(self._ascending[level], ticks - overhead[level])
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
        return work <= self._domain.ranks * target.ticks


def _rows(table: IntArray) -> list[list[int]] | list[IntArray]:
    return table.tolist() if table.shape[1] <= _FEW else list(table)


def _first(ascending: list[int] | IntArray, limit: int) -> int:
    """The first of the sequences (longest first) that is within the limit."""
    if isinstance(ascending, list):
        return len(ascending) - bisect_right(ascending, limit)
    return len(ascending) - int(ascending.searchsorted(limit, side="right"))
