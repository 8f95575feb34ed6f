"""The content of a fence: lines, lines with an omission, and gaps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ringproof.harness.fences.source import fold, tokens

_DOTS = re.compile(r"\.\.\.|…")
# `...` alone, in brackets, or at the start of any comment.
_GAP = re.compile(r"[\[(<{]?(?:\.\.\.|…)[\])>}]?[,;]?|(?:#|//|/\*|--|<!--|%|;)\s*(?:\.\.\.|…).*")
_COMMENT = re.compile(r"#|//|/\*|\*/|<!--")


@dataclass(frozen=True)
class Whole:
    """A line quoted in full."""

    text: str


@dataclass(frozen=True)
class Cut:
    """A line with ``...``: the text before, between and after the dots, in this order."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Gap:
    """Any number of lines, or none."""


Item = Whole | Cut | Gap


@dataclass(frozen=True)
class Quote:
    """A quotation that can be searched.

    Args:
        items: Items from the first to the last line that is not a gap.
        open_start: Whether it begins with a gap.
        open_end: Whether it ends with a gap.
    """

    items: tuple[Item, ...]
    open_start: bool = False
    open_end: bool = False

    @property
    def tokens(self) -> frozenset[str]:
        """Quoted names; those of whole-line comments only if there are no others."""
        lines = [_text(item) for item in self.items]
        code = [line for line in lines if not _COMMENT.match(line)]
        return frozenset().union(*(tokens(line) for line in code)) or frozenset().union(
            *(tokens(line) for line in lines)
        )


def verbatim(lines: Sequence[str]) -> Quote:
    """Return a quote in which dots have no meaning. Blank lines do not count."""
    return Quote(tuple(Whole(text) for text in map(fold, lines) if text))


def elided(lines: Sequence[str]) -> Quote:
    """Return a quote in which ``...`` and ``…`` stand for omitted text."""
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
