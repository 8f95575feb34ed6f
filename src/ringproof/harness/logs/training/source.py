"""A training log's lines, in bounded memory, and the format they are recognised to have.

Neither compression nor format is taken from the file's name: gzip is known by its first bytes, the
format by the first lines.
"""

from __future__ import annotations

import gzip
import io
import itertools
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from ringproof.errors import InputError

JSONL, MEGATRON, CSV = "jsonl", "megatron", "csv"
FORMATS = (JSONL, MEGATRON, CSV)
STDIN = "-"

PIECE_BYTES = 1 << 20
"""A line longer than this comes in pieces: it is no line of a training log."""
_HEAD_BYTES, _HEAD_LINES = 256 << 10, 2000
_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
DELIMITERS = (",", ";", "\t")
_STEPS = frozenset({b"step", b"_step", b"global_step", b"iteration", b"iter"})
_NUMBER = re.compile(rb"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_UTF8_MARK = b"\xef\xbb\xbf"

# What begins a line of Megatron-LM's training_log (megatron/training/training.py) and of
# Megatron-Bridge's (training/utils/train_utils.py); the same in all releases read.
ITERATION = re.compile(rb"\biteration +([0-9]{1,15})/ *[0-9]{1,15} +\|")


class Source:
    """The lines of one open log; iterate it once, then read what was noted.

    Attributes:
        path: As the user named it.
        role: ``A`` or ``B``, for messages.
        format: One of :data:`FORMATS`.
        notes: What the reader of the verdict should know of the bytes themselves.
    """

    def __init__(self, path: str, role: str, stream: BinaryIO, wanted: str | None) -> None:
        self.path = path
        self.role = role
        self.notes: list[str] = []
        self._lines = self._pieces(stream)
        self._head = self._read_head()
        self.format = wanted or recognised(self._head)

    def __iter__(self) -> Iterator[bytes]:
        head, self._head = self._head, []
        return itertools.chain(head, self._lines)

    def refused(self, problem: str, remedy: str) -> InputError:
        """The error that says why this log cannot be used."""
        return InputError(self.role, self.path, problem, remedy)

    def _read_head(self) -> list[bytes]:
        head: list[bytes] = []
        size = 0
        for line in itertools.islice(self._lines, _HEAD_LINES):
            head.append(line)
            size += len(line)
            if size > _HEAD_BYTES:
                break
        if not head:
            raise self.refused("empty", "name a training log")
        if head[0].startswith(_UTF16):
            raise self.refused("UTF-16 text", "save it as UTF-8")
        head[0] = head[0].removeprefix(_UTF8_MARK)
        return head

    def _pieces(self, stream: BinaryIO) -> Iterator[bytes]:
        try:
            while line := stream.readline(PIECE_BYTES):
                yield line
        except gzip.BadGzipFile as error:
            raise self.refused(f"damaged gzip data: {error}", "unpack it by hand") from error
        except (EOFError, zlib.error) as error:
            self.notes.append(f"the compressed data is damaged ({error}); read up to there")
        except OSError as error:
            raise self.refused(f"cannot be read: {error.strerror or error}", _CHECK) from error


def recognised(head: list[bytes]) -> str:
    """The format of a log that begins with these lines.

    An iteration line anywhere makes it Megatron's, even inside JSON, as container engines wrap it.
    Else it is JSON lines if the first line that says anything is an object, or most lines are; or
    CSV if columns of numbers follow. What is none of these may be a long preamble, so it is
    Megatron's until no iteration line turns up.
    """
    if any(ITERATION.search(line) for line in head):
        return MEGATRON
    said = [line.strip() for line in head if line.strip()]
    objects = [line.startswith(b"{") and line.endswith(b"}") for line in said]
    if objects and (objects[0] or 2 * sum(objects) > len(objects)):
        return JSONL
    return CSV if _is_table(said[:4]) else MEGATRON


def _is_table(said: list[bytes]) -> bool:
    """A header with a step, or a line and then rows of as many cells, numbers among them."""
    if not said:
        return False
    mark = max(DELIMITERS, key=lambda mark: said[0].count(mark.encode())).encode()
    header, *rows = ([cell.strip(b'" ') for cell in line.split(mark)] for line in said)
    if len(header) > 1 and any(cell.lower() in _STEPS for cell in header):
        return True
    return bool(rows) and all(
        len(row) == len(header) > 1 and any(_NUMBER.fullmatch(cell) for cell in row) for row in rows
    )


@contextmanager
def opened(
    path: str, role: str, *, stdin: BinaryIO | None = None, wanted: str | None = None
) -> Iterator[Source]:
    """The log at ``path``; ``-`` is ``stdin``.

    Raises:
        InputError: a file that is missing, unreadable, no file, or damaged from the start.
    """
    if path == STDIN:
        yield Source(path, role, _unpacked(stdin or io.BytesIO()), wanted)
        return
    try:
        _refuse_special(path, role)
        raw = Path(path).open("rb")  # noqa: SIM115 - closed below, whichever reader is put on it
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(role, path, "no such file", "name a training log") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(role, path, f"cannot be read: {reason}", _CHECK) from error
    with raw:
        yield Source(path, role, _unpacked(raw), wanted)


_CHECK = "check its name and permissions"


def _unpacked(stream: BinaryIO) -> BinaryIO:
    if isinstance(stream, io.BufferedReader):
        buffered = stream
    else:
        buffered = io.BufferedReader(cast("io.RawIOBase", stream))
    if not buffered.peek(2).startswith(_GZIP):
        return buffered
    return io.BufferedReader(gzip.GzipFile(fileobj=buffered))


def _refuse_special(path: str, role: str) -> None:
    """A device could be read for ever; a pipe ends with its writer."""
    mode = Path(path).stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError(role, path, "a directory", "name the log file in it")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise InputError(role, path, "a device or socket, not a file", "name a training log")
