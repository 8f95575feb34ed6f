"""Read what is appended to a file or a pipe, also where the file is replaced or emptied."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ringproof.errors import InputError
from ringproof.logs.lines import GZIP, STDIN, Origin

BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 256


class Follower(Origin):
    """Gives the complete lines that were appended since the last time.

    A log that is renamed away is read to its end, then the new file of that name from its
    beginning. A file that became shorter, or whose first bytes changed, was written anew.

    Attributes:
        waiting: Whether the file does not exist yet.
        ended: Whether nothing can follow: the pipe was closed.
    """

    def __init__(self, path: str, role: str, stdin: BinaryIO | None = None) -> None:
        super().__init__(path, role)
        self.waiting = path != STDIN
        self.ended = False
        self._handle = stdin.fileno() if path == STDIN and stdin is not None else -1
        self._head = b""
        self._place = 0
        self._rest = b""

    def lines(self) -> Iterator[bytes | None]:
        """Yield each line that is complete by now; ``None`` before those of a file begun anew.

        Raises:
            InputError: The file cannot be read, or it is compressed.
        """
        if self.path == STDIN:
            yield from self._piped()
            return
        if self._handle < 0 and not self._open():
            return
        if self._rewritten():
            os.lseek(self._handle, 0, os.SEEK_SET)
            yield from self._begin_anew()
        yield from self._appended()
        while self._replaced():
            yield from self._appended()  # what was written before it was renamed
            os.close(self._handle)
            self._handle = -1
            yield from self._begin_anew()
            if not self._open():
                return
            yield from self._appended()

    def unfinished(self) -> bytes:
        """Return the last line, where no line end stands behind it, and forget it."""
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0 and self.path != STDIN:
            os.close(self._handle)
        self._handle = -1

    def _open(self) -> bool:
        try:
            if not stat.S_ISREG(Path(self.path).stat().st_mode):
                raise self.refused("is not a file that grows", "name a log file, or - for stdin")
            self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise self.unreadable(error) from error
        self.waiting = False
        return True

    def _begin_anew(self) -> Iterator[bytes | None]:
        if rest := self.unfinished():
            yield rest
        self._head, self._place = b"", 0
        yield None

    def _rewritten(self) -> bool:
        if os.fstat(self._handle).st_size < self._place:
            return True
        return os.pread(self._handle, len(self._head), 0) != self._head

    def _replaced(self) -> bool:
        """Whether another file has the name; a file that was only removed may go on."""
        try:
            now = Path(self.path).stat()
        except OSError:
            return False
        mine = os.fstat(self._handle)
        return (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino)

    def _appended(self) -> Iterator[bytes]:
        try:
            while block := os.read(self._handle, BLOCK_BYTES):
                if len(self._head) < _HEAD_BYTES:
                    self._head += block[: _HEAD_BYTES - len(self._head)]
                if self._head.startswith(GZIP):
                    problem = "compressed data cannot be followed"
                    raise self.refused(problem, "unpack it, or pipe it into stdin")
                self._place += len(block)
                yield from self._split(block)
        except OSError as error:
            raise self.unreadable(error) from error

    def _piped(self) -> Iterator[bytes]:
        """Read until nothing is there at the moment."""
        while not self.ended and (self._handle < 0 or select.select([self._handle], [], [], 0)[0]):
            block = b"" if self._handle < 0 else os.read(self._handle, BLOCK_BYTES)
            self.ended = not block
            yield from self._split(block)

    def _split(self, block: bytes) -> Iterator[bytes]:
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()
        yield from lines
        if len(self._rest) > BLOCK_BYTES:  # not a line of a training log: give it up in parts
            yield self.unfinished()
