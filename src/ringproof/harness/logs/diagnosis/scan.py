"""One pass over a log of any size, which returns the few lines that can matter.

Blocks of bytes are searched for a few fixed strings. A line is decoded only if it holds one of
them, or if the reader asked for the lines that follow one, as a traceback needs. Memory is that of
a few blocks. Of a line that is longer than a block, or that a progress bar overwrites, only a part
is returned.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ringproof.files import looks_binary
from ringproof.harness.logs.lines import ANSI, BLOCK_BYTES

_ENGINE = b"Running with config="
NEEDLES = (
    b"rror:",
    b"Traceback (most recent",
    b"Watchdog caught",
    b"Root Cause (first",
    b"(exitcode: -",
    b": nan",
    b": NaN",
    b": NAN",
    _ENGINE,
)
"""Strings that lines of interest hold; all of a run's length is searched for them."""
EARLY_NEEDLES = (
    b"using world size: ",
    b"cp_comm_type ",
    b"context_parallel_",
    b"_context_parallel .",
)
EARLY_BYTES = 32 << 20  # arguments are printed at the start
MOST_REPEATED = 4096
MOST_CHARACTERS = 16 << 10
_ITERATION_MARK = b"elapsed time per iteration"
_SKIPPED = re.compile(rb"nan iterations: +[1-9]")
_ITERATION = re.compile(rb"iteration +([0-9]{1,12})/")


@dataclass(frozen=True)
class ScannedLine:
    """A line of a log.

    Attributes:
        number: Line number from 1.
        text: The line without colours, cut to `MOST_CHARACTERS`.
        iteration: Iteration that the last line of training progress up to it names, if any.
    """

    number: int
    text: str
    iteration: int | None


class Scan:
    """Iterates over the lines of interest of a stream, once.

    Attributes:
        follow: Number of further lines to return whatever they hold; the reader sets it.
        iteration: Iteration that the last line of training progress names.
        lines, bytes_read: What has been read so far.
        repeated: Number of each line of Transformer Engine, of which only the first is returned.
    """

    def __init__(self, stream: BinaryIO, head: bytes = b"") -> None:
        self._stream = stream
        self._head = head
        self.follow = 0
        self.iteration: int | None = None
        self.lines = 0
        self.bytes_read = 0
        self.looks_binary = False
        self._searched = 0
        self.repeated: Counter[bytes] = Counter()

    def __iter__(self) -> Iterator[ScannedLine]:
        rest = self._head
        self.looks_binary = looks_binary(rest) if rest else False
        self.bytes_read = len(rest)
        while True:
            block = self._stream.read(BLOCK_BYTES)
            if self.bytes_read == 0:
                self.looks_binary = looks_binary(block)
            self.bytes_read += len(block)
            data = rest + block if rest else block
            cut = data.rfind(b"\n") + 1 if block else len(data)
            if cut == 0 and len(data) >= BLOCK_BYTES:
                cut = len(data)  # one line larger than a block: give it up in parts
            yield from self._search(data, cut)
            if not block:
                return
            rest = data[cut:]

    def _search(self, data: bytes, end: int) -> Iterator[ScannedLine]:
        """Return the lines of interest in ``data[:end]``, which begins and ends with a line."""
        found = self._found(data, end)
        position = counted = index = self._searched = 0
        while position < end:
            if self.follow > 0:
                self.follow -= 1
                start = position
            else:
                while index < len(found) and found[index] < position:
                    index += 1
                if index == len(found):
                    break
                start = max(position, data.rfind(b"\n", position, found[index]) + 1)
            feed = data.find(b"\n", start, end)
            stop = end if feed < 0 else feed
            self.lines += data.count(b"\n", counted, start)
            counted = start
            place = found[index] if index < len(found) and start <= found[index] < stop else start
            yield ScannedLine(
                self.lines + 1, _text(data, start, place, stop), self._before(data, stop)
            )
            position = stop + 1
        self.lines += data.count(b"\n", counted, end)
        if end and data[end - 1] != 0x0A:
            self.lines += 1
        self._before(data, end)

    def _found(self, data: bytes, end: int) -> list[int]:
        """Return a position in each line that holds a needle, in order."""
        early = self.bytes_read <= EARLY_BYTES
        places: list[int] = []
        for needle in NEEDLES + EARLY_NEEDLES if early else NEEDLES:
            place = data.find(needle, 0, end)
            while place >= 0:
                feed = data.find(b"\n", place, end)
                if needle is not _ENGINE or not self._repeated(data[place : max(feed, place)]):
                    places.append(place)
                place = -1 if feed < 0 else data.find(needle, feed, end)
        places += (match.start() for match in _SKIPPED.finditer(data, 0, end))
        places.sort()
        return places

    def _repeated(self, tail: bytes) -> bool:
        """Count a line of Transformer Engine, and say whether it stood before."""
        known = tail in self.repeated
        if known or len(self.repeated) < MOST_REPEATED:
            self.repeated[tail] += 1
        return known

    def _before(self, data: bytes, position: int) -> int | None:
        """Return the iteration of the last line of progress that ends before a position."""
        mark = data.rfind(_ITERATION_MARK, self._searched, position)
        self._searched = max(self._searched, position - len(_ITERATION_MARK))
        if mark >= 0:
            start = data.rfind(b"\n", 0, mark) + 1
            match = _ITERATION.search(data, start, mark)
            self.iteration = int(match[1]) if match else self.iteration
        return self.iteration


def _text(data: bytes, start: int, place: int, stop: int) -> str:
    """Return the part of a line, between carriage returns, that holds a position."""
    left = max(data.rfind(b"\r", start, place) + 1, start, place - MOST_CHARACTERS // 2)
    right = data.find(b"\r", place, stop)
    right = min(stop if right < 0 else right, left + MOST_CHARACTERS)
    return ANSI.sub("", data[left:right].decode("utf-8", errors="replace"))
