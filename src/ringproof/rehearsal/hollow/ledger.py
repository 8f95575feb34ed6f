"""A ledger of the memory of one device: which blocks live, since when, and of how many bytes.

It knows no torch. Blocks are as large as those that torch's caching allocator hands out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ringproof.rehearsal.hollow.allocator import Allocator, SegmentBlock, rounded


@dataclass(frozen=True)
class Origin:
    """Where a block is from.

    Attributes:
        operation: Name of the operation of torch that made it.
        shape: Shape of the tensor that it was made for.
        place: ``FILE:LINE`` upstream.
        module: Innermost module of the model whose forward ran; empty outside of any.
        phase: What upstream did: ``setup``, ``step``, ``optimizer`` or ``between``.
        backward: Whether the backward pass ran.
    """

    operation: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    place: str = ""
    module: str = ""
    phase: str = "setup"
    backward: bool = False


@dataclass
class LiveBlock:
    """One block of memory.

    Attributes:
        bytes: Size at the end, or when it was dropped.
        kind: What it holds, where somebody said so; empty otherwise.
        received: Whether a collective or a receive wrote into it.
        dropped_in_backward: ``None`` while it lives.
    """

    bytes: int
    origin: Origin
    kind: str = ""
    received: bool = False
    dropped_in_backward: bool | None = None


@dataclass(frozen=True)
class Mark:
    """A moment that upstream reached.

    Attributes:
        event: Number of events before it.
        bytes: Memory at that moment.
        peak: Highest memory since the mark before.
    """

    name: str
    event: int
    bytes: int
    peak: int


class Ledger:
    """Counts the live bytes of a device, and keeps every change.

    Attributes:
        bytes: Live bytes now.
        peak: Highest number of live bytes so far.
        peak_event: Number of events after which the peak was reached.
        events: LiveBlock number and change in bytes, in order.
        allocator: Hands the blocks out.
    """

    def __init__(self) -> None:
        self.bytes = self.peak = self.peak_event = 0
        self.blocks: dict[int, LiveBlock] = {}
        self.events: list[tuple[int, int]] = []
        self.marks: list[Mark] = []
        self.allocator = Allocator()
        self._since_mark = 0
        self._held: dict[int, SegmentBlock] = {}

    def enter(self, count: int, origin: Origin) -> int:
        """Note that a block of ``count`` bytes exists from now on; return its number."""
        number = len(self.blocks) + 1
        self.blocks[number] = LiveBlock(0, origin)
        self.resize(number, count)
        return number

    def resize(self, number: int, count: int) -> None:
        """Note that a block has another size from now on."""
        block, held = self.blocks[number], self._held.pop(number, None)
        if held is not None:
            self.allocator.release(held)
        size = 0
        if count:
            self._held[number] = self.allocator.allocate(count)
            size = self._held[number].size
        change = size - block.bytes
        block.bytes += change
        self._change(number, change)

    def drop(self, number: int, *, backward: bool = False) -> None:
        """Note that a block is gone."""
        block = self.blocks[number]
        if block.dropped_in_backward is None:
            block.dropped_in_backward = backward
            held = self._held.pop(number, None)
            if held is not None:
                self.allocator.release(held)
            self._change(number, -block.bytes)

    def pass_by(self, needed: Collection[tuple[int, Origin]]) -> None:
        """Note that some bytes more were needed at the same moment, inside of one call.

        They are as many as asked for: the allocator's free blocks stay as they are.
        """
        first = len(self.blocks) + 1
        for number, (count, origin) in enumerate(needed, first):
            size = rounded(count)
            self.blocks[number] = LiveBlock(size, origin, "temporaries")
            self._change(number, size)
        for number in range(first, len(self.blocks) + 1):
            self.drop(number)

    def mark(self, name: str) -> None:
        """Note a moment."""
        self.marks.append(Mark(name, len(self.events), self.bytes, self._since_mark))
        self._since_mark = self.bytes

    def _change(self, number: int, change: int) -> None:
        self.bytes += change
        self.events.append((number, change))
        self._since_mark = max(self._since_mark, self.bytes)
        if self.bytes > self.peak:
            self.peak, self.peak_event = self.bytes, len(self.events)

    def alive(self, event: int) -> dict[int, int]:
        """Return the bytes of each block that was alive after so many events."""
        sizes: Counter[int] = Counter()
        for number, change in self.events[:event]:
            sizes[number] += change
        return {number: size for number, size in sizes.items() if size}

    def levels(self, start: int, kinds: Mapping[int, str]) -> Iterator[Counter[str]]:
        """Yield the bytes of each kind after the events from ``start`` on, one after the other.

        Args:
            kinds: Kind of each block by its number.
        """
        level: Counter[str] = Counter()
        for event, (number, change) in enumerate(self.events):
            level[kinds[number]] += change
            if event >= start:
                yield level  # the same object each time
