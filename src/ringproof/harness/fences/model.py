"""What a document says about a place in code, and whether the place is still there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["fence", "inline", "symbol"]
Status = Literal["exact", "moved", "changed", "missing"]


@dataclass(frozen=True)
class ByteSpan:
    """Where in a document's bytes a number is written: ``data[start:end]`` are its digits."""

    start: int
    end: int


@dataclass(frozen=True)
class Mention:
    """One place in code that a document points to.

    Args:
        kind: ``fence`` (info string ``start:end:path``), ``inline`` (``path:line``,
            ``path:start-end``) or ``symbol`` (a name listed behind a path).
        path: As written.
        start: First line as written; ``None`` for a symbol.
        end: Last line; equals ``start`` where one line is named.
        line: Line of the document, from 1.
        quote: A fence's lines; for the other kinds the one name that stands beside the path, or
            nothing.
        spans: Where the numbers are written: two for a range, one for a line, none for a symbol.
    """

    kind: Kind
    path: str
    start: int | None
    end: int | None
    line: int
    quote: tuple[str, ...] = ()
    spans: tuple[ByteSpan, ...] = ()


@dataclass(frozen=True)
class Placement:
    """Where a mention's text stands.

    Args:
        status: ``exact``: at the lines named; ``moved``: elsewhere in the file, at ``new_start`` to
            ``new_end``; ``changed``: only partly there, best at these lines where they are given;
            ``missing``: no file, no text, or lines past the end.
        why: What is wrong, for people; empty when nothing is.
        quoted: False where nothing was quoted, so that only the lines' existence was checked.
    """

    status: Status
    new_start: int | None = None
    new_end: int | None = None
    why: str = ""
    quoted: bool = True


@dataclass(frozen=True)
class JudgedMention:
    """A mention of a document, judged.

    Args:
        file: The document, relative to the repository root, with slashes.
    """

    file: str
    mention: Mention
    placement: Placement
