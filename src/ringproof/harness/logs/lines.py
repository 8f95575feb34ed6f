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
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from ringproof.errors import InputError
from ringproof.files import looks_binary
from ringproof.pipes import open_input

STDIN = "-"
GZIP = b"\x1f\x8b"
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


class Origin:
    """Where a log is, for messages: its path, and the argument that named it (``role``)."""

    def __init__(self, path: str, role: str) -> None:
        self.path = path
        self.role = role

    def refused(self, problem: str, remedy: str) -> InputError:
        """Return the error that says why this log cannot be used."""
        return InputError(self.role, self.path, problem, remedy)

    def unreadable(self, error: Exception) -> InputError:
        """Return the refusal of a file that cannot be read."""
        reason = getattr(error, "strerror", None) or str(error)
        return self.refused(f"cannot be read: {reason}", "check its name and permissions")


class OpenLog(Origin):
    """The bytes of an open log, unpacked where they are gzip data.

    Attributes:
        bytes_read: Bytes of the text so far.
        looks_binary: Whether the first bytes are mostly not text. A few NULs do not count: some
            PyTorch releases print the device index as a raw byte.
        damage: What is wrong with the compressed data, which ends there; empty for nothing.
    """

    def __init__(self, path: str, role: str, stream: BinaryIO) -> None:
        super().__init__(path, role)
        raw = cast("io.RawIOBase", stream)
        self._stream = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(raw)
        if self._stream.peek(2).startswith(GZIP):
            self._stream = io.BufferedReader(gzip.GzipFile(fileobj=self._stream))
        self.bytes_read = 0
        self.looks_binary = False
        self.damage = ""

    def read(self, size: int) -> bytes:
        """Return the next bytes; none at the end, or where compressed data is damaged.

        Raises:
            InputError: The file cannot be read, or is not gzip data although it begins like it.
        """
        return self._taken(self._stream.read, size)

    def readline(self, size: int) -> bytes:
        """Return the next line, or the first ``size`` bytes of a longer one; see `read`."""
        return self._taken(self._stream.readline, size)

    def _taken(self, read: Callable[[int], bytes], size: int) -> bytes:
        try:
            data = read(size)
        except gzip.BadGzipFile as error:
            raise self.refused(f"not gzip data: {error}", "rename or unpack it") from error
        except (EOFError, zlib.error) as error:
            self.damage = f"the compressed data is damaged ({error}); read up to there"
            return b""
        except OSError as error:
            raise self.unreadable(error) from error
        if not self.bytes_read:
            self.looks_binary = looks_binary(data)
        self.bytes_read += len(data)
        return data

    def notes(self) -> Iterator[str]:
        """Yield what the reader of a verdict should know of the bytes, once all are read."""
        if self.damage:
            yield f"{self.path}: {self.damage}"
        if self.bytes_read == 0:
            yield f"{self.path} is empty"
        elif self.looks_binary:
            yield f"{self.path} looks binary or UTF-16, not like a text log"


@contextmanager
def opened(role: str, path: str, *, what: str, stdin: BinaryIO | None) -> Iterator[OpenLog]:
    """Open a log: a file, a pipe, or ``stdin`` for ``-``. gzip is known by its first bytes.

    Args:
        role: Argument that named the path, for messages; ``what`` is the kind of log.

    Raises:
        InputError: The file is missing, cannot be read, or is a folder or device.
    """
    if path == STDIN:
        yield OpenLog(path, role, stdin or io.BytesIO())
        return
    origin = Origin(path, role)
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise origin.refused("a directory", f"name the {what} in it")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):  # a device could be read for ever
            raise origin.refused("a device or socket, not a file", f"name a {what}")
        raw = open_input(Path(path))
    except FileNotFoundError as error:
        raise origin.refused("no such file", f"name a {what}") from error
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise origin.unreadable(error) from error
    with raw:
        yield OpenLog(path, role, raw)


class Line(NamedTuple):
    """A line (or piece of one) that may be evidence; ``number`` counts from 1."""

    number: int
    data: bytes

    @property
    def text(self) -> str:
        """The line without colours."""
        return _ANSI.sub("", self.data.decode("utf-8", errors="replace"))


class Scan:
    """One pass over a log for the lines that hold one of `NEEDLES`; iterate it once.

    Args:
        head: Bytes of the log that were read already.
    """

    def __init__(self, log: OpenLog, head: bytes = b"") -> None:
        self._log = log
        self._head = head
        self._feeds = self._counted = 0
        self._open_line = False

    @property
    def lines(self) -> int:
        """Lines seen so far, an unfinished last one included."""
        return self._feeds + int(self._open_line)

    def __iter__(self) -> Iterator[Line]:
        rest = self._head
        while True:
            block = self._log.read(BLOCK_BYTES)
            data = rest + block if rest else block
            end = data.rfind(b"\n") + 1 if block else len(data)
            if end == 0 and len(data) >= BLOCK_BYTES:
                end = len(data)  # one line larger than a block: give it up in parts
            self._counted = 0
            yield from self.search(data, end)
            self.number(data, end)
            if end:
                self._open_line = data[end - 1] != 0x0A
            if not block:
                return
            rest = data[end:]

    def number(self, data: bytes, place: int) -> int:
        """Return the number of the line at a place of a block; places only go up."""
        self._feeds += data.count(b"\n", self._counted, place)
        self._counted = place
        return self._feeds + 1

    def search(self, data: bytes, end: int) -> Iterator[Line]:
        """Yield the lines of interest in ``data[:end]``, in their order."""
        for start, stop in sorted(_spans(data, end)):
            yield Line(self.number(data, start), data[start:stop])


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
