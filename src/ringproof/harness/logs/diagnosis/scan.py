"""One pass over a log of any size, which returns the few lines that can explain a failure.

A line is decoded only if it holds one of a few fixed strings, or if the reader asked for the lines
that follow one, as a traceback needs. Of a line that is longer than a block, or that a progress bar
overwrites, only a part is returned.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ringproof.harness.logs.lines import Line, OpenLog, Scan

_ENGINE = b"Running with config="
NEEDLES = (
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
WEAK_NEEDLES = (b"rror:",)
"""What lines hold that can be an exception without its traceback, which is weak evidence."""
ERROR_NEEDLES = (b"CUDA error", b".py: error: ")
"""What takes their place once there were enough of them: errors that a line alone shows."""
EARLY_NEEDLES = (
    b"using world size: ",
    b"cp_comm_type ",
    b"context_parallel_",
    b"_context_parallel .",
)
EARLY_BYTES = 32 << 20  # arguments are printed at the start
MOST_REPEATED = 4096
MOST_BYTES = 16 << 10
_ITERATION_MARK = b"elapsed time per iteration"
_SKIPPED = re.compile(rb"nan iterations: +[1-9]")
_ITERATION = re.compile(rb"iteration +([0-9]{1,12})/")


class DiagnosisScan(Scan):
    """Iterates over the lines of interest of a log, once.

    Attributes:
        follow: Number of further lines to return whatever they hold; the reader sets it.
        weak: Whether to return lines that are weak evidence alone; the reader ends that.
        repeated: Number of each line of Transformer Engine, of which only the first is returned.
    """

    def __init__(self, log: OpenLog, head: bytes = b"") -> None:
        super().__init__(log, head)
        self.follow = 0
        self.weak = True
        self.repeated: Counter[bytes] = Counter()
        self._iteration: int | None = None
        self._data = b""
        self._searched = self._stop = 0

    @property
    def iteration(self) -> int | None:
        """Iteration of the last line of training progress up to the line returned last."""
        mark = self._data.rfind(_ITERATION_MARK, self._searched, self._stop)
        self._searched = max(self._searched, self._stop - len(_ITERATION_MARK))
        if mark >= 0:
            start = self._data.rfind(b"\n", 0, mark) + 1
            match = _ITERATION.search(self._data, start, mark)
            self._iteration = int(match[1]) if match else self._iteration
        return self._iteration

    def search(self, data: bytes, end: int) -> Iterator[Line]:
        """Yield the lines of interest in ``data[:end]``, which begins and ends with a line."""
        found = self._found(data, end)
        self._data, self._searched = data, 0
        position = index = 0
        while position < end:
            while index < len(found) and found[index] < position:
                index += 1
            if self.follow > 0:
                self.follow -= 1
                start = position
            elif index == len(found):
                break
            else:
                start = max(position, data.rfind(b"\n", position, found[index]) + 1)
            feed = data.find(b"\n", start, end)
            self._stop = stop = end if feed < 0 else feed
            line = data[start:stop]
            if b"\r" in line or len(line) > MOST_BYTES:
                held = index < len(found) and start <= found[index] < stop
                line = _part(line, found[index] - start if held else 0)
            yield Line(self.number(data, start), line)
            position = stop + 1
        self._stop = end
        self._iteration = self.iteration

    def _found(self, data: bytes, end: int) -> list[int]:
        """Return a position in each line that holds a needle, in order."""
        early = self._log.bytes_read <= EARLY_BYTES
        places: list[int] = []
        errors = WEAK_NEEDLES if self.weak else ERROR_NEEDLES
        for needle in (*NEEDLES, *errors, *(EARLY_NEEDLES if early else ())):
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


def _part(line: bytes, place: int) -> bytes:
    """Return the part of a line, between carriage returns, that holds a position."""
    left = max(line.rfind(b"\r", 0, place) + 1, place - MOST_BYTES // 2)
    right = line.find(b"\r", place)
    return line[left : min(len(line) if right < 0 else right, left + MOST_BYTES)]
