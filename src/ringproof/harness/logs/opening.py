"""Opening a log that the user named: a file, a pipe or standard input, with gzip unpacked."""

from __future__ import annotations

import gzip
import io
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from ringproof.errors import InputError

STDIN = "-"
_GZIP = b"\x1f\x8b"


@contextmanager
def opened(field: str, path: str, *, what: str, stdin: BinaryIO | None) -> Iterator[BinaryIO]:
    """Open the log at ``path``; ``-`` is ``stdin``. Compression is known by the first bytes.

    Args:
        field: Argument that named the path, for messages; ``what`` is the kind of log.

    Raises:
        InputError: The file is missing, cannot be read, or is a folder or device.
    """
    if path == STDIN:
        yield _unpacked(stdin or io.BytesIO())
        return
    try:
        _refuse_special(field, path, what)
        raw = Path(path).open("rb")  # noqa: SIM115 - closed below, whichever reader is put on it
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(field, path, "no such file", f"name a {what}") from error
    except (OSError, ValueError) as error:
        raise unreadable(field, path, error) from error
    with raw:
        yield _unpacked(raw)


def unreadable(field: str, path: str, error: Exception) -> InputError:
    """The refusal of a file that cannot be read."""
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


def _refuse_special(field: str, path: str, what: str) -> None:
    """A device could be read for ever; a pipe ends with its writer."""
    mode = Path(path).stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError(field, path, "a directory", f"name the {what} in it")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise InputError(field, path, "a device or socket, not a file", f"name a {what}")
