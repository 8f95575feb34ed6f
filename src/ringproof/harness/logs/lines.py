"""The lines of a log that can matter, out of gigabytes, in bounded memory.

A block of bytes is searched for a few fixed strings before anything is decoded; only a line that
holds one of them becomes text. A line is what stands between line feeds or carriage returns, so
that progress bars and CRLF need no care. A line longer than :data:`PIECE_BYTES` is read in pieces
of that length: a marker across a seam is lost, memory is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ringproof.files import looks_binary

BLOCK_BYTES = 1 << 20
PIECE_BYTES = 64 << 10

# One per kind of evidence; each parser states what it needs beyond its needle.
NEEDLES = (
    b"ringproof census",  # without the bracket: colours may stand in between
    b"ringproof traffic",
    b"] [PG ",  # the end of a C++ log header and the prefix
    b"Running with config=",
    b"using world size: ",
    b"cp_comm_type ",
    b"context_parallel_size",
)

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


@dataclass(frozen=True)
class Line:
    """A line (or piece of one) that may be evidence: its 1-based number and its clean text."""

    number: int
    text: str


class LogScan:
    """One pass over a byte stream; iterate it once, then read the counts.

    Attributes:
        bytes_read: Bytes seen so far, ``lines`` the lines begun so far.
        looks_binary: The first bytes are mostly not text. A few NULs are no sign: some PyTorch
            releases print the device index as a raw byte.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._feeds = 0
        self._open_line = False
        self.bytes_read = 0
        self.looks_binary = False

    @property
    def lines(self) -> int:
        """Lines seen so far, an unfinished last one included."""
        return self._feeds + int(self._open_line)

    def __iter__(self) -> Iterator[Line]:
        rest = b""
        while True:
            block = self._stream.read(BLOCK_BYTES)
            if self.bytes_read == 0:
                self.looks_binary = looks_binary(block)
            self.bytes_read += len(block)
            data = rest + block if rest else block
            cut = len(data) if not block else data.rfind(b"\n") + 1
            if cut == 0 and len(data) >= BLOCK_BYTES:
                cut = len(data)  # one line larger than a block: give it up in parts
            yield from self._search(data, cut)
            if not block:
                return
            rest = data[cut:]

    def _search(self, data: bytes, end: int) -> Iterator[Line]:
        """The candidates in ``data[:end]``, in order; advances the line count."""
        counted = 0
        for start, stop in sorted(_spans(data, end)):
            self._feeds += data.count(b"\n", counted, start)
            counted = start
            yield Line(self._feeds + 1, _clean(data[start:stop]))
        self._feeds += data.count(b"\n", counted, end)
        if end:
            self._open_line = data[end - 1] != 0x0A


def _spans(data: bytes, end: int) -> set[tuple[int, int]]:
    """Start and stop of every line or piece in ``data[:end]`` that holds a needle."""
    spans: set[tuple[int, int]] = set()
    for needle in NEEDLES:
        line_start = searched = 0
        found = data.find(needle, 0, end)
        while found >= 0:
            # Only what lies between two finds: a block without line feeds would cost its square.
            line_start = data.rfind(b"\n", searched, found) + 1 or line_start
            searched = found
            start, stop = _span(data, line_start, found, end)
            spans.add((start, stop))
            found = data.find(needle, max(stop, found + 1), end)
    return spans


def _span(data: bytes, line_start: int, found: int, end: int) -> tuple[int, int]:
    """The line, or the piece of a long line, in which position ``found`` lies."""
    piece = line_start + (found - line_start) // PIECE_BYTES * PIECE_BYTES
    limit = min(end, piece + PIECE_BYTES)
    feed = data.find(b"\n", found, limit)
    stop = limit if feed < 0 else feed
    carriage = data.find(b"\r", found, stop)
    start = max(piece, data.rfind(b"\r", piece, found) + 1)
    return start, stop if carriage < 0 else carriage


def _clean(raw: bytes) -> str:
    """Text without colours; bytes that are no UTF-8 become the replacement character."""
    return _ANSI.sub("", raw.decode("utf-8", errors="replace"))
