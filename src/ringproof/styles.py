"""What colours on a terminal mean, and the words at the beginning of a line that have one."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from types import MappingProxyType

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GOOD, BAD, DOUBT, NOTE, ASIDE = "green", "bold red", "yellow", "cyan", "dim"

_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        GOOD: ("yes", "PASS", "agrees", "as asked", "can train", "holds"),
        BAD: (
            "no", "FAIL", "broken", "cannot train", "error", "fails", "disagrees", "not as asked",
            "problem", "refused", "trains wrong", "Cause", "cause",
        ),
        DOUBT: (
            "changed", "depends on the version", "has no effect", "left", "not checked", "slow",
            "unread", "also",
        ),
        NOTE: ("Note", "note", "Remedy", "remedy", "restart", "to change"),
    }
)  # fmt: skip
_STYLE_OF = MappingProxyType({word: style for style, own in _WORDS.items() for word in own})
_LABEL = re.compile(r" *\S+(?: \S+)* {2,}|(?= {8}) +")
_LEAD = re.compile(r" *(?:\S+(?: \S+)* {2,}|[\w-]+: )?")
_WORD = re.compile(
    f" *({'|'.join(sorted(map(re.escape, _STYLE_OF), key=len, reverse=True))})(?=:|,| \\(|  |$)"
)


def word_style(line: str) -> tuple[str, int, int] | None:
    """Return the style of the word that a line or its second column begins with, and its place.

    >>> word_style("  remedy: raise it"), word_style("Starts      yes: 5 steps")
    (('cyan', 2, 8), ('green', 12, 15))
    """
    lead = _LEAD.match(line)
    for start in (0, lead.end() if lead else 0):
        if found := _WORD.match(line, start):
            return _STYLE_OF[found[1]], *found.span(1)
    return None


def shown_on(console: Console, text: Text) -> Text:
    """Break a line to the width of a terminal; a pipe with colours (FORCE_COLOR) gets it whole."""
    return fitted(text, console.width) if console.file.isatty() else text


def fitted(text: Text, width: int) -> Text:
    """Break a line between words where it is wider than ``width``, and indent what goes on.

    A line with a label in its first column goes on in the second one. A word that is wider than
    the width, such as a path, has a line of its own and is not broken, so that it can be copied.

    >>> print(fitted(Text("Starts      yes: 5 steps in 28 s"), 24))
    Starts      yes: 5 steps
                in 28 s
    """
    plain = text.plain
    if cell_len(plain) <= width:
        return text
    label = _LABEL.match(plain)
    if label and label.end() <= width // 2:
        start = indent = label.end()
    else:
        start = len(plain) - len(plain.lstrip(" "))
        indent = start + 4
    pieces = textwrap.wrap(
        plain[start:], width, initial_indent=" " * start, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False, expand_tabs=False, replace_whitespace=False,
    )  # fmt: skip
    lines, at = [text[:start]], start
    for number, piece in enumerate(map(str.lstrip, pieces)):
        at = plain.index(piece, at)
        words = text[at : at + len(piece)]
        lines.append(Text(" " * indent) + words if number else lines.pop() + words)
        at += len(piece)
    return Text("\n").join(lines)
