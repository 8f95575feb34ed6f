"""What a fence quotes: lines, lines with a part left out, and gaps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ringproof.harness.fences.source import fold, tokens

_DOTS = re.compile(r"\.\.\.|…")
# `...` alone, in brackets, or at the start of a comment, whatever the comment then says.
_GAP = re.compile(r"[\[(<{]?(?:\.\.\.|…)[\])>}]?[,;]?|(?:#|//|/\*|--|<!--|%|;)\s*(?:\.\.\.|…).*")
_COMMENT = re.compile(r"#|//|/\*|\*/|<!--")


@dataclass(frozen=True)
class Whole:
    """A line quoted in full."""

    text: str


@dataclass(frozen=True)
class Cut:
    """A line with ``...`` in it: what stands before, between and behind the dots, in this order."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Gap:
    """Any number of lines, none included."""


Item = Whole | Cut | Gap


@dataclass(frozen=True)
class Quote:
    """A quotation, ready to be found.

    Args:
        items: What stands between the first and the last line that are not gaps.
        open_start: It begins with a gap.
        open_end: It ends with a gap.
    """

    items: tuple[Item, ...]
    open_start: bool = False
    open_end: bool = False

    @property
    def tokens(self) -> frozenset[str]:
        """The names quoted; those of whole-line comments only where there are no others."""
        lines = [_text(item) for item in self.items]
        code = [line for line in lines if not _COMMENT.match(line)]
        return frozenset().union(*(tokens(line) for line in code)) or frozenset().union(
            *(tokens(line) for line in lines)
        )


def verbatim(lines: Sequence[str]) -> Quote:
    """A quote in which dots are dots. Blank lines do not count."""
    return Quote(tuple(Whole(text) for text in map(fold, lines) if text))


def elided(lines: Sequence[str]) -> Quote:
    """A quote in which ``...`` and ``…`` stand for what was left out."""
    items: list[Item] = []
    for text in filter(None, map(fold, lines)):
        item = _item(text)
        if not (isinstance(item, Gap) and items and isinstance(items[-1], Gap)):
            items.append(item)
    open_start = bool(items) and isinstance(items[0], Gap)
    open_end = bool(items) and isinstance(items[-1], Gap)
    inner = items[open_start : len(items) - (open_end and len(items) > 1)]
    return Quote(tuple(inner), open_start, open_end)


def _item(text: str) -> Item:
    if _GAP.fullmatch(text):
        return Gap()
    parts = tuple(part.strip() for part in _DOTS.split(text))
    if len(parts) == 1:
        return Whole(text)
    return Cut(parts) if parts[0] else Gap()


def _text(item: Item) -> str:
    if isinstance(item, Whole):
        return item.text
    return " ".join(item.parts) if isinstance(item, Cut) else ""
