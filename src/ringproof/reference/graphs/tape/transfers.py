"""Transfers in flight during a replay: waited for by whoever needs their buffers, or at the end.

The captured function waited somewhere, too, but its waits are no operations. They are found again
from the buffers: whoever reads what arrives, or writes what leaves, came after a wait.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ringproof.reference.graphs.tape.memory import Block


class Touch(NamedTuple):
    """Blocks that an operation reads, and those that it writes."""

    reads: frozenset[Block]
    writes: frozenset[Block]

    def conflicts(self, other: Touch) -> bool:
        """Whether the order of the two matters."""
        return bool(
            self.writes & other.writes or self.writes & other.reads or self.reads & other.writes
        )


class Transfers:
    """Those that were started and not waited for."""

    def __init__(self) -> None:
        self._pending: list[tuple[Any, Touch]] = []

    def start(self, work: Any, touch: Touch) -> None:
        """Remember a ``Work``."""
        self._pending.append((work, touch))

    def make_way_for(self, touch: Touch) -> None:
        """Wait for those that an operation would get in the way of."""
        if not self._pending:
            return
        blocking = [work for work, other in self._pending if touch.conflicts(other)]
        self._pending = [one for one in self._pending if not touch.conflicts(one[1])]
        for work in blocking:
            work.wait()

    def finish(self) -> None:
        """Wait for all."""
        pending, self._pending = self._pending, []
        for work, _ in pending:
            work.wait()
