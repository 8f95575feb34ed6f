"""Open a log, and find the lines of it that can matter, out of gigabytes, in bounded memory.

A block of bytes is searched for a few fixed strings before anything is decoded; only a line that
holds one of them becomes text. A line is what stands between line feeds or carriage returns, so
that progress bars and CRLF need no care. Of a longer line, only `PIECE_BYTES` before and after each
of the strings are read.
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

from ringproof.errors import InputError, shown
from ringproof.files import looks_binary

STDIN = "-"
GZIP = b"\x1f\x8b"
BLOCK_BYTES = 1 << 20
PIECE_BYTES = 64 << 10

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


class OpenLog:
    """The bytes of an open log, unpacked where they are gzip data.

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
        self.bytes_read = 0
        self.looks_binary = False
        self.damage = ""

    def refused(self, problem: str) -> InputError:
        """Return the error that says why this log cannot be used, and what to do."""
        return _refused(self.role, self.path, problem)

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
            raise self.refused(f"is not gzip data ({error}); rename or unpack it") from error
        except (EOFError, zlib.error) as error:
            self.damage = f"the compressed data is damaged ({error}) and was read up to there"
            return b""
        except OSError as error:
            raise _unreadable(self.role, self.path, error) from error
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


def _refused(role: str, path: str, problem: str) -> InputError:
    return InputError(role, f"{shown(path)} {problem}")


def _unreadable(role: str, path: str, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    return _refused(role, path, f"cannot be read ({reason}); check its name and permissions")


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
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise _refused(role, path, f"is a folder; name the {what} in it")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):  # a device could be read for ever
            raise _refused(role, path, f"is a device or a socket; name a {what}")
        raw = Path(path).open("rb")  # noqa: SIM115 # closed below
    except FileNotFoundError as error:
        raise _refused(role, path, f"does not exist; name a {what}") from error
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
    """One pass over a log for the lines that hold one of some strings; iterate it once.

    Args:
        needles: The strings.
        head: Bytes of the log that were read already.

    Attributes:
        follow: Whether to return also the next line, whatever it holds; the reader sets it.
        data, stop: The block that is searched, and where in it the line returned last ends.
    """

    def __init__(self, log: OpenLog, needles: tuple[bytes, ...], head: bytes = b"") -> None:
        self.needles = needles
        self.follow = False
        self.data, self.stop = b"", 0
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
            self._number(data, end)
            if end:
                self._open_line = data[end - 1] != 0x0A
            if not block:
                return
            rest = data[end:]

    def search(self, data: bytes, end: int) -> Iterator[Line]:
        """Yield the lines of interest in ``data[:end]``, in their order."""
        places = [*self.places(data, end), end]
        self.data = data
        index = position = line = 0
        while True:
            while places[index] < position:
                index += 1
            found = places[index]
            # The next line comes first, unless the needle found next stands in it or before it.
            if self.follow and line < end and (found == end or data.find(b"\n", line, found) >= 0):
                found = line
            if found == end:
                break
            self.stop, line = _line_end(data, found, end)
            start = max(position, found - PIECE_BYTES)
            start = max(start, data.rfind(b"\n", start, found) + 1)
            start = max(start, data.rfind(b"\r", start, found) + 1)
            yield Line(self._number(data, start), data[start : self.stop])
            position = min(self.stop + 1, end)
        self.stop = end

    def places(self, data: bytes, end: int) -> list[int]:
        """Return where in ``data[:end]`` the needles are, each once in a line, in order."""
        found: list[int] = []
        for needle in self.needles:
            place = data.find(needle, 0, end)
            while place >= 0:
                stop, _ = _line_end(data, place, end)
                if self.is_new(needle, place, stop, data):
                    found.append(place)
                place = data.find(needle, stop, end)
        return sorted(found)

    def is_new(self, needle: bytes, start: int, stop: int, data: bytes) -> bool:
        """Whether a needle and the rest of its line are of interest; a subclass may say no."""
        return True

    def _number(self, data: bytes, place: int) -> int:
        """Return the number of the line at a place of a block; places only go up."""
        self._feeds += data.count(b"\n", self._counted, place)
        self._counted = place
        return self._feeds + 1


def _line_end(data: bytes, place: int, end: int) -> tuple[int, int]:
    """Return where the line around a place ends, and where the next one begins."""
    limit = min(end, place + PIECE_BYTES)
    feed = data.find(b"\n", place, limit)
    stop = limit if feed < 0 else feed
    carriage = data.find(b"\r", place, stop)
    return stop if carriage < 0 else carriage, stop + (feed >= 0)
