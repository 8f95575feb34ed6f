"""Where the lengths of a batch come from: a file, a drawn distribution, a folder of documents."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.planner import MAX_SEQUENCES

MAX_BYTES = 256 * 1024 * 1024
"""A file of `MAX_SEQUENCES` lengths is smaller, in any of the formats."""
MAX_LENGTH = 10**12
STDIN = "-"
_INLINE = re.compile(r"\d{1,12}(,\d{1,12})+")
_FORMS = "name a file, or write lognormal:mean=1024,sigma=1.5,n=512 or folder:PATH,glob=*.py"


@dataclass(frozen=True)
class Lengths:
    """Tokens of each sequence, and where each was found.

    Attributes:
        values: Shape ``(n,)``, each at least 1.
        source: What the user named.
        lines: Line of each in the source, where the source has lines.
        names: Name of each, where the source is a folder.
        notes: What a reader should know: what was skipped or cut.
    """

    values: IntArray
    source: str
    lines: IntArray | None = None
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def place(self, index: int) -> str:
        """Where one sequence was found, for a message."""
        if self.names:
            return plain(self.names[index])
        if self.lines is not None:
            return f"{plain(self.source)}:{self.lines[index]}"
        return f"{plain(self.source)}[{index}]"

    def refuse_longer(self, longest: int) -> None:
        """Refuse sequences that no group can hold.

        Raises:
            InputError: Names the first.
        """
        large = np.flatnonzero(self.values > longest)
        if len(large):
            problem = f"sequence longer than the {longest:,} tokens that the largest group holds"
            remedy = "raise --max-tokens-per-rank or --ranks, or cut the sequence"
            raise InputError(self.place(large[0]), int(self.values[large[0]]), problem, remedy)


def read_lengths(source: str, *, column: str = "", stdin: BinaryIO | None = None) -> Lengths:
    """The lengths that a user's word stands for.

    Args:
        source: ``lognormal:...`` or ``folder:...`` (see `draws`); a file of text, CSV, JSON, JSON
            lines, NPY or Parquet (see `formats`); ``-`` for such a file on standard input; or
            numbers separated by commas where no file has that name.
        column: Of CSV, JSON objects and Parquet; the only one with numbers when empty.
        stdin: What ``-`` reads.

    Raises:
        InputError: Names file and line of the first length that cannot be used.
    """
    from ringproof.reference.planning import draws, formats  # both build on this module

    kind, _, rest = source.partition(":")
    if kind in ("lognormal", "folder"):
        if column:
            raise InputError("--column", column, f"{kind}: has no columns", "leave it out")
        return draws.lognormal(rest) if kind == "lognormal" else draws.folder(rest)
    if source == STDIN:
        if stdin is None:
            raise InputError("--lengths", source, "there is no standard input", "name a file")
        return formats.parse(_limited(stdin, "standard input"), "standard input", column)
    path = Path(source)
    if _INLINE.fullmatch(source) and not _exists(path):
        numbers = [int(part) for part in source.split(",")]
        return make_lengths(numbers, "--lengths")
    return formats.parse(_content(path), source, column)


def make_lengths(
    values: Sequence[int] | IntArray,
    source: str,
    *,
    lines: Sequence[int] | None = None,
    names: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Lengths:
    """Lengths whose values have been checked.

    Raises:
        InputError: None, too many, or one below 1 or beyond all reason; names the first.
    """
    refuse_count(len(values), source)
    if len(values) == 0:
        raise InputError(plain(source), None, "has no lengths", "give at least one sequence")
    where = None if lines is None else np.asarray(lines, np.int64)
    given = values
    # Python's integers may not fit: cut before the conversion, to a value refused below.
    if not isinstance(values, np.ndarray):
        values = np.array([max(min(value, MAX_LENGTH + 1), -1) for value in values], np.int64)
    made = Lengths(values.astype(np.int64), source, where, tuple(names), tuple(notes))
    bad = np.flatnonzero((made.values < 1) | (made.values > MAX_LENGTH))
    if len(bad):
        value = given[bad[0]]
        problem = "length is less than 1" if value < 1 else f"length is over {MAX_LENGTH:,}"
        raise InputError(made.place(bad[0]), value, problem, "correct it or leave it out")
    return made


def refuse_count(count: int, source: str) -> None:
    """Refuse more lengths than one batch has, before there is memory for them.

    Raises:
        InputError: More than `MAX_SEQUENCES`.
    """
    if count > MAX_SEQUENCES:
        problem = f"{count:,} lengths, more than {MAX_SEQUENCES:,}"
        raise InputError(plain(source), None, problem, "plan one global batch at a time")


def plain(text: str, limit: int = 300) -> str:
    """Text in which every character can be seen, on one line."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in cut)


def _exists(path: Path) -> bool:
    """Whether there is such a file; a long list of numbers is not even a file's name."""
    try:
        return path.exists()
    except OSError:
        return False


def _content(path: Path) -> bytes:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            remedy = f"write folder:{plain(str(path))} for its files"
            raise InputError("--lengths", plain(str(path)), "is a folder", remedy)
        _refuse_size(status.st_size, str(path))
        with path.open("rb") as stream:
            return _limited(stream, str(path))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "is no file name"
        raise InputError("--lengths", plain(str(path)), str(reason), _FORMS) from error


def _limited(stream: BinaryIO, name: str) -> bytes:
    content = stream.read(MAX_BYTES + 1)
    _refuse_size(len(content), name)
    return content


def _refuse_size(size: int, name: str) -> None:
    if size > MAX_BYTES:
        problem = f"more than {MAX_BYTES // 1024**2} MiB: too many lengths for one batch"
        raise InputError(plain(name), None, problem, "plan one global batch at a time")
