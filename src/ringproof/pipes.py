"""Open what the user named without waiting in silence where it is a pipe."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from ringproof.errors import InputError

PATIENCE_SECONDS = 5.0
"""How long a pipe may be without a writer, and how long it may be silent before that is said."""


def open_input(path: Path) -> BinaryIO:
    """Open a file for reading in binary mode.

    A pipe that nothing writes to within `PATIENCE_SECONDS` is refused when it is read. Of a pipe
    whose writer is silent for that long, a line on stderr says so, once.

    Raises:
        OSError: It cannot be opened, or it is a folder, a socket or a terminal.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if os.isatty(handle):
            raise OSError(errno.EINVAL, "is a terminal", str(path))
        if stat.S_ISFIFO(mode):
            return io.BufferedReader(_Pipe(handle, path))
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def open_output(path: Path) -> io.FileIO:
    """Open a file for appending in binary mode, without a buffer.

    Raises:
        OSError: It cannot be opened, or it is a pipe that nothing reads.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO and path.is_fifo():
            raise OSError(errno.ENXIO, "nothing reads this pipe", str(path)) from error
        raise
    os.set_blocking(handle, True)
    return io.FileIO(handle, "ab")


class _Pipe(io.RawIOBase):
    """The reading end of a named pipe."""

    def __init__(self, handle: int, path: Path) -> None:
        super().__init__()
        self._handle, self._path = handle, path
        self._deadline = time.monotonic() + PATIENCE_SECONDS
        self._told = False
        self._events = select.poll()
        self._events.register(handle, select.POLLIN)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read what there is, at least one byte; 0 when every writer has gone.

        Raises:
            InputError: There is no writer.
        """
        while True:
            found = self._events.poll(1000 * PATIENCE_SECONDS)
            try:
                count = os.readv(self._handle, [buffer])
            except BlockingIOError:  # there is a writer
                self._tell()
                continue
            if count or found:
                return count
            if time.monotonic() >= self._deadline:
                remedy = "start the program that does, or name a file"
                raise InputError(str(self._path), None, "nothing writes to this pipe", remedy)

    def _tell(self) -> None:
        if not self._told:
            print(f"waiting for {self._path}: a pipe that is silent", file=sys.stderr, flush=True)
        self._told = True

    def close(self) -> None:
        """Close it."""
        if not self.closed:
            os.close(self._handle)
        super().close()
