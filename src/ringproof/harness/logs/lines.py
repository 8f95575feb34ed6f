"""Open a log, and find the lines of it that can matter, out of gigabytes, in bounded memory.

A block of bytes is searched for a few fixed strings before anything is decoded; only a line that
holds one of them becomes text. A line is what stands between line feeds or carriage returns, so
that progress bars and CRLF need no care. A line longer than `PIECE_BYTES` is read in pieces of that
length: a marker across a seam is lost, memory is not.
"""

from __future__ import annotations

import gzip
import io
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from ringproof.errors import InputError
from ringproof.files import looks_binary
from ringproof.pipes import open_input

STDIN = "-"
_GZIP = b"\x1f\x8b"
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

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


@contextmanager
def opened(field: str, path: str, *, what: str, stdin: BinaryIO | None) -> Iterator[BinaryIO]:
    """Open a log: a file, a pipe, or ``stdin`` for ``-``. gzip is known by its first bytes.

    Args:
        field: Argument that named the path, for messages; ``what`` is the kind of log.

    Raises:
        InputError: The file is missing, cannot be read, or is a folder or device.
    """
    if path == STDIN:
        yield _unpacked(stdin or io.BytesIO())
        return
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(field, path, "a directory", f"name the {what} in it")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):  # a device could be read for ever
            raise InputError(field, path, "a device or socket, not a file", f"name a {what}")
        raw = open_input(Path(path))
    except FileNotFoundError as error:
        raise InputError(field, path, "no such file", f"name a {what}") from error
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise unreadable(field, path, error) from error
    with raw:
        yield _unpacked(raw)


def unreadable(field: str, path: str, error: Exception) -> InputError:
    """Return the refusal of a file that cannot be read."""
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(field, path, f"cannot be read: {reason}", "check its name and permissions")


def _unpacked(stream: BinaryIO) -> BinaryIO:
    if isinstance(stream, io.BufferedReader):
        buffered = stream
    else:
        buffered = io.BufferedReader(cast("io.RawIOBase", stream))
    if not buffered.peek(2).startswith(_GZIP):
        return buffered
    return io.BufferedReader(gzip.GzipFile(fileobj=buffered))


@dataclass(frozen=True)
class Line:
    """A line (or piece of one) that may be evidence: its 1-based number and its clean text."""

    number: int
    text: str


class LogScan:
    """One pass over a byte stream; iterate it once, then read the counts.

    Attributes:
        looks_binary: Whether the first bytes are mostly not text. A few NULs do not count: some
            PyTorch releases print the device index as a raw byte.
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
        """Yield the candidates in ``data[:end]``, in order, and advance the line count."""
        counted = 0
        for start, stop in sorted(_spans(data, end)):
            self._feeds += data.count(b"\n", counted, start)
            counted = start
            text = data[start:stop].decode("utf-8", errors="replace")
            yield Line(self._feeds + 1, ANSI.sub("", text))
        self._feeds += data.count(b"\n", counted, end)
        if end:
            self._open_line = data[end - 1] != 0x0A


def _spans(data: bytes, end: int) -> set[tuple[int, int]]:
    """Return start and stop of every line or piece in ``data[:end]`` that holds a needle."""
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
    """Return the line, or the piece of a long line, in which position ``found`` lies."""
    piece = line_start + (found - line_start) // PIECE_BYTES * PIECE_BYTES
    limit = min(end, piece + PIECE_BYTES)
    feed = data.find(b"\n", found, limit)
    stop = limit if feed < 0 else feed
    carriage = data.find(b"\r", found, stop)
    start = max(piece, data.rfind(b"\r", piece, found) + 1)
    return start, stop if carriage < 0 else carriage
