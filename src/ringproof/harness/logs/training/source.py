"""A training log's lines, in bounded memory, and the format they are recognised to have.

Neither compression nor format is taken from the file's name: gzip is known by its first bytes, the
format by the first lines.
"""

from __future__ import annotations

import gzip
import itertools
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from ringproof.errors import InputError
from ringproof.harness.logs.lines import opened, unreadable

JSONL, MEGATRON, CSV = "jsonl", "megatron", "csv"
FORMATS = (JSONL, MEGATRON, CSV)

PIECE_BYTES = 1 << 20
"""A line longer than this comes in pieces: it is no line of a training log."""
_HEAD_BYTES, _HEAD_LINES = 256 << 10, 2000
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
            raise unreadable(self.role, self.path, error) from error


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
def opened_source(
    path: str, role: str, *, stdin: BinaryIO | None = None, wanted: str | None = None
) -> Iterator[Source]:
    """Open the training log at ``path``; ``-`` is ``stdin``.

    Raises:
        InputError: a file that is missing, unreadable, no file, or damaged from the start.
    """
    with opened(role, path, what="training log", stdin=stdin) as stream:
        yield Source(path, role, stream, wanted)
