"""Markdown as lines and tokens, with the frontmatter left out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

LINE_END = re.compile(r"\r\n?|\n")
"""The line ends of CommonMark, which are also those of editors."""

BYTE_ORDER_MARK = "\ufeff"


def split_lines(text: str) -> list[str]:
    """Split a document into lines, without a byte order mark and without line ends."""
    return LINE_END.split(text.removeprefix(BYTE_ORDER_MARK))


def without_frontmatter(lines: Sequence[str]) -> list[str]:
    """Replace the lines of the frontmatter by empty lines, so that line numbers stay.

    Frontmatter that is not closed is ordinary text.
    """
    if lines[0].rstrip() == "---":
        for at, line in enumerate(lines[1:], 1):
            if line.rstrip() in ("---", "..."):
                return [""] * (at + 1) + list(lines[at + 1 :])
    return list(lines)


def parse(lines: Sequence[str]) -> list[Token]:
    """Parse CommonMark with tables.

    Raises:
        ValueError: The text cannot be parsed, for example because it is nested too deeply.
    """
    try:
        return MarkdownIt("commonmark").enable("table").parse("\n".join(lines))
    except (RecursionError, IndexError) as error:
        raise ValueError("cannot be parsed as Markdown") from error
