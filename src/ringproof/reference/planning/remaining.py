"""The sequences that no microbatch has yet."""

from __future__ import annotations

import numpy as np

from ringproof.reference.planning.domain import IntArray

_FIRST_LOOK = 256
"""Sequences that are looked at first; twice as many each time that was too few."""


class Remaining:
    """Places of sequences in a batch's order, from which the first ones are taken again and again.

    Nothing here but `all` takes time in proportion to what remains, so that a batch of many
    microbatches does not take time in proportion to the square of its sequences.

    Args:
        tokens: Tokens of each sequence, in the order of the batch.
    """

    def __init__(self, tokens: IntArray) -> None:
        self._tokens = tokens
        self._there = np.ones(len(tokens), bool)
        self._head = 0
        self._count = len(tokens)
        self._look = _FIRST_LOOK
        self.tokens = int(tokens.sum())

    def __len__(self) -> int:
        return self._count

    def all(self) -> IntArray:
        """All that remain."""
        return self._head + np.flatnonzero(self._there[self._head :])

    def remove(self, members: IntArray) -> None:
        """Take sequences out."""
        self._there[members] = False
        self._count -= len(members)
        self.tokens -= int(self._tokens[members].sum())
        if self._count:
            while not self._there[self._head]:
                here = self._there[self._head : self._head + self._look]
                self._head += int(here.argmax()) if here.any() else len(here)

    def worth(self, tokens: int, budget: int) -> IntArray:
        """The first sequences, up to the one that reaches ``tokens``, within ``budget``."""
        while True:
            end = self._head + self._look
            found = self._head + np.flatnonzero(self._there[self._head : end])
            cumulative = np.cumsum(self._tokens[found])
            if int(cumulative[-1]) >= tokens or end >= len(self._there):
                break
            self._look *= 2
        stop = int(np.searchsorted(cumulative, tokens)) + 1  # with the one that crosses the line
        stop = min(stop, int(np.searchsorted(cumulative, budget, side="right")))
        return found[: max(1, stop)]

    def after(self, place: int, skipped: int, most: int) -> IntArray:
        """Later sequences than one place, without the first few: all, or every n-th."""
        start, look = place + 1, self._look
        while skipped and start < len(self._there):
            here = np.flatnonzero(self._there[start : start + look])
            if len(here) > skipped:
                start, skipped = start + int(here[skipped]), 0
            else:
                start, skipped = start + look, skipped - len(here)
        step = max(1, -(-(len(self._there) - start) // most))
        start += len(self) % step  # others each time, so that none is passed over for good
        return start + step * np.flatnonzero(self._there[start::step])

    def following(self, places: IntArray) -> IntArray | None:
        """For each place, one that remains at or after it, all different; ``None`` without one."""
        found: list[int] = []
        for place in np.sort(places).tolist():
            start = max(place, found[-1] + 1 if found else 0)
            here = self._there[start : start + _FIRST_LOOK]
            step = int(here.argmax()) if len(here) else 0
            if not len(here) or not here[step]:
                return None
            found.append(start + step)
        return np.array(found, np.int64)
