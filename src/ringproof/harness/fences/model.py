"""Mentions of code in a document, and the results of checking them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["fence", "inline", "symbol"]
Status = Literal["exact", "moved", "changed", "missing"]


@dataclass(frozen=True)
class ByteSpan:
    """Position of a number in a document: ``data[start:end]`` are its digits."""

    start: int
    end: int


@dataclass(frozen=True)
class Mention:
    """A mention of code in a document.

    Args:
        kind: ``fence`` (info string ``start:end:path``), ``inline`` (``path:line``,
            ``path:start-end``) or ``symbol`` (a name listed behind a path).
        path: Path as written.
        start: First line as written; ``None`` for a symbol.
        end: Last line; equals ``start`` where one line is named.
        line: Line in the document, from 1.
        quote: Lines of a fence; for the other kinds, the name beside the path, or nothing.
        spans: Positions of the numbers: two for a range, one for a line, none for a symbol.
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
    """Result of checking a mention.

    Args:
        status: ``exact``: at the named lines; ``moved``: elsewhere in the file, at ``new_start`` to
            ``new_end``; ``changed``: only partly found, most similar at these lines if they are
            given; ``missing``: no file, no text, or lines past the end.
        why: Explanation of the problem; empty if there is none.
        quoted: False without a quotation, so that only the existence of the lines was checked.
    """

    status: Status
    new_start: int | None = None
    new_end: int | None = None
    why: str = ""
    quoted: bool = True


@dataclass(frozen=True)
class JudgedMention:
    """A mention and the result of checking it.

    Args:
        file: Path of the document from the repository root, with slashes.
    """

    file: str
    mention: Mention
    placement: Placement
