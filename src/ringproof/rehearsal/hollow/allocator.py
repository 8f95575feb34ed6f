"""How torch's caching allocator hands out blocks: sizes that are counted, and what is reserved.

A request of more than 1 MiB takes a free block whole if less than 1 MiB of it would be left, and
torch counts the whole block as allocated. With ``expandable_segments`` blocks are always split.
The rules are those of ``c10/cuda/CUDACachingAllocator.cpp``, for one stream and no other settings.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

GRAIN = 512
"""Bytes to a multiple of which a block is rounded up."""
SMALL = 1 << 20
"""Largest request that is served from small segments; most that is left of a block unsplit."""
SMALL_SEGMENT, LARGE_SEGMENT = 2 << 20, 20 << 20
LARGE_REQUEST = 10 << 20
"""From here on, a request without a free block gets a segment of its own."""


def rounded(count: int) -> int:
    """Return the bytes that the allocator needs for a request.

    >>> rounded(1), rounded(512), rounded(0)
    (512, 512, 0)
    """
    return -(-count // GRAIN) * GRAIN


def segment(size: int) -> int:
    """Return the bytes of a new segment for a request.

    >>> [segment(size) >> 20 for size in (512, 2 << 20, 21 << 20)]
    [2, 20, 22]
    """
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < LARGE_REQUEST:
        return LARGE_SEGMENT
    return -(-size // SMALL_SEGMENT) * SMALL_SEGMENT


@dataclass(eq=False)
class SegmentBlock:
    """A part of a segment, with its neighbours in it.

    Attributes:
        address: Place in an order in which later segments come later.
    """

    address: int
    size: int
    small: bool
    before: SegmentBlock | None = None
    after: SegmentBlock | None = None
    free: bool = False


class Allocator:
    """Free and used blocks of one device.

    Attributes:
        reserved: Bytes of all segments.
        expandable: Whether every block is split, as with ``expandable_segments:True``.
    """

    def __init__(self, *, expandable: bool = False) -> None:
        self.expandable = expandable
        self.reserved = self._end = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._at: dict[int, SegmentBlock] = {}

    def allocate(self, count: int) -> SegmentBlock:
        """Return a block for a request of ``count`` bytes, at least 1."""
        size = rounded(count)
        small = size <= SMALL
        free = self._free[small]
        place = bisect_left(free, (size, -1))
        if place < len(free):
            block = self._at.pop(free.pop(place)[1])
        else:
            block = SegmentBlock(self._end, segment(size), small)
            self._end += block.size
            self.reserved += block.size
        block.free = False
        left = block.size - size
        if left >= GRAIN if small or self.expandable else left > SMALL:
            self._split(block, size)
        return block

    def _split(self, block: SegmentBlock, size: int) -> None:
        rest = SegmentBlock(
            block.address + size, block.size - size, block.small, block, block.after
        )
        if rest.after is not None:
            rest.after.before = rest
        block.size, block.after = size, rest
        self._put_back(rest)

    def _put_back(self, block: SegmentBlock) -> None:
        block.free = True
        self._at[block.address] = block
        insort(self._free[block.small], (block.size, block.address))

    def _take_out(self, block: SegmentBlock) -> None:
        free = self._free[block.small]
        free.pop(bisect_left(free, (block.size, block.address)))
        del self._at[block.address]

    def release(self, block: SegmentBlock) -> None:
        """Take a block back, and join it with free neighbours."""
        before, after = block.before, block.after
        if before is not None and before.free:
            self._take_out(before)
            block.address, block.size = before.address, block.size + before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._take_out(after)
            block.size, block.after = block.size + after.size, after.after
            if block.after is not None:
                block.after.before = block
        self._put_back(block)

    def empty(self) -> None:
        """Give segments back that are free as a whole."""
        for free in self._free.values():
            whole = [at for at in free if not (self._at[at[1]].before or self._at[at[1]].after)]
            for size, address in whole:
                free.remove((size, address))
                del self._at[address]
                self.reserved -= size
