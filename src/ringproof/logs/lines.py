"""Open a log, and find the lines of it that can matter, out of gigabytes, in bounded memory.

A log is read in blocks. A block is searched for a few fixed strings before anything is decoded;
only a line that holds one of them becomes text. A line is what stands between line feeds or
carriage returns, so that progress bars and CRLF need no care. Of a longer line, only `PIECE_BYTES`
before and after each of the strings are read.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from ringproof.errors import InputError, shown
from ringproof.files import looks_binary

STDIN = "-"
GZIP = b"\x1f\x8b"
WIDE = (b"\xff\xfe", b"\xfe\xff")  # how UTF-16 begins
BLOCK_BYTES = 1 << 20
PIECE_BYTES = 64 << 10

# The second form is a colour whose escape character was lost when the text was copied.
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
    r"|\[\d{1,2}(?:;\d{1,3}){0,4}m"
)


class OpenLog:
    """The bytes of an open log, unpacked where they are gzip data, which the first bytes tell.

    Attributes:
        path: Where the log is, and ``role`` the argument that named it, for messages.
        bytes_read: Bytes of the text so far.
        looks_binary: Whether the first bytes are mostly not text. A few NULs do not count: some
            PyTorch releases print the device index as a raw byte.
        damage: What is wrong with the compressed data, which ends there; empty for nothing.
    """

    def __init__(self, path: str, role: str, stream: BinaryIO) -> None:
        self.path, self.role = path, role
        raw = cast("io.RawIOBase", stream)
        self._stream = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(raw)
        if self._stream.peek(2).startswith(GZIP):
            self._stream = io.BufferedReader(gzip.GzipFile(fileobj=self._stream))
        self._decoder: codecs.IncrementalDecoder | None = None
        self.bytes_read = 0
        self.looks_binary = False
        self.damage = ""

    def refused(self, problem: str) -> InputError:
        """Return the error that says why this log cannot be used, and what to do."""
        return InputError(self.role, f"{shown(self.path)} {problem}")

    def blocks(self) -> Iterator[bytes]:
        """Yield the log in blocks that end where a line does; a very long line comes in parts.

        Raises:
            InputError: The file cannot be read, or is not gzip data although it begins like it.
        """
        data = b""
        while more := self._read():
            data += more
            if len(data) >= BLOCK_BYTES:
                end = data.rfind(b"\n") + 1 or len(data)
                yield data[:end]
                data = data[end:]
        if data:
            yield data

    def _read(self) -> bytes:
        """Return some more bytes; none at the end, or where compressed data is damaged."""
        try:
            # Not read: it would lose what precedes the damage in a block.
            data = self._stream.read1(BLOCK_BYTES)
        except gzip.BadGzipFile as error:
            raise self.refused(f"is not gzip data ({error}); rename or unpack it") from error
        except (EOFError, zlib.error) as error:
            self.damage = f"the compressed data is damaged ({error}) and was read up to there"
            return b""
        except OSError as error:
            raise _unreadable(self.role, self.path, error) from error
        if not self.bytes_read and data.startswith(WIDE) and 3 * data.count(0) > len(data):
            self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        if self._decoder is not None:
            self.bytes_read += 1
            data, more = self._decoder.decode(data, final=not data).encode(), data
            if more and not data:  # half a character
                return self._read()
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


def _unreadable(role: str, path: str, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    sentence = f"{shown(path)} cannot be read ({reason}); check its name and permissions"
    return InputError(role, sentence)


@contextmanager
def opened(role: str, path: str, *, what: str, stdin: BinaryIO | None) -> Iterator[OpenLog]:
    """Open a log: a file, a pipe, or ``stdin`` for ``-``.

    Args:
        role: Argument that named the path, for messages; ``what`` is the kind of log.

    Raises:
        InputError: The file is missing, cannot be read, or is a folder or device.
    """
    if path == STDIN:
        yield OpenLog(path, role, stdin or io.BytesIO())
        return
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(role, f"{shown(path)} is a folder; name the {what} in it")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):  # a device could be read for ever
            raise InputError(role, f"{shown(path)} is a device or a socket; name a {what}")
        raw = Path(path).open("rb")  # noqa: SIM115 # closed below
    except FileNotFoundError as error:
        raise InputError(role, f"{shown(path)} does not exist; name a {what}") from error
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise _unreadable(role, path, error) from error
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
    """One pass over the blocks of a log for lines that hold one of some strings; iterate it once.

    Attributes:
        lines: Lines of the blocks that were searched.
        follow: Whether to return also the next line, whatever it holds; the reader sets it.
        block, stop: The block that is searched, and where in it the line returned last ends.
    """

    def __init__(self, blocks: Iterable[bytes], needles: tuple[bytes, ...]) -> None:
        self.needles = needles
        self.lines = self.stop = 0
        self.follow = False
        self.block = b""
        self._blocks = blocks
        self._feeds = 0

    def __iter__(self) -> Iterator[Line]:
        for block in self._blocks:
            self.block = block
            yield from self.search()
            self._feeds += block.count(b"\n")
            self.lines = self._feeds + (not block.endswith(b"\n"))

    def search(self) -> Iterator[Line]:
        """Yield the lines of interest in the block, in their order."""
        data, end = self.block, len(self.block)
        number, counted, following = self._feeds + 1, 0, 0
        for place in (*self.places(), end):
            while place >= following:
                found = place
                if self.follow and following < end:
                    # The next line comes first, unless the string found next stands in it.
                    found = following
                if found == end:
                    break
                start = _line_start(data, found, following)
                number += data.count(b"\n", counted, start)
                counted = start
                self.stop, following = _line_end(data, found)
                yield Line(number, data[start : self.stop])
        self.stop = end

    def places(self) -> list[int]:
        """Return where in the block the strings are, each once in a line, in order."""
        found: list[int] = []
        for needle in self.needles:
            place = self.block.find(needle)
            while place >= 0:
                found.append(place)
                place = self.block.find(needle, _line_end(self.block, place)[0])
        return sorted(found)


def _line_start(data: bytes, place: int, earliest: int) -> int:
    start = max(earliest, place - PIECE_BYTES)
    start = max(start, data.rfind(b"\n", start, place) + 1)
    return max(start, data.rfind(b"\r", start, place) + 1)


def _line_end(data: bytes, place: int) -> tuple[int, int]:
    """Return where the line around a place ends, and where the next one begins."""
    limit = min(len(data), place + PIECE_BYTES)
    feed = data.find(b"\n", place, limit)
    stop = limit if feed < 0 else feed
    carriage = data.find(b"\r", place, stop)
    if carriage < 0 or carriage + 1 == feed:
        return stop if carriage < 0 else carriage, stop + (feed >= 0)
    return carriage, carriage + 1
