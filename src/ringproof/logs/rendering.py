"""Fills the templates of what ``ringproof logs`` prints."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ringproof.errors import printable
from ringproof.findings.printable import showable
from ringproof.reference.topology.census_line import format_ranks
from ringproof.templates import fill_template

_MOST_NAMES = 6
_MOST_TEXT = 300


def rendered_lines(template: str, **values: Any) -> list[str]:
    """Return the lines of a template of ``logs/templates``, filled with values.

    Whatever came from a log goes through the filter ``printable`` or ``showable`` there, since it
    could steer a terminal.
    """
    filters = {
        "comma": "{:,}".format,
        "counted": counted,
        "general": lambda value, digits=6: f"{value:.{digits}g}",
        "ordinal": ordinal,
        "printable": printable,
        "ranks": rank_text,
        "short_ranks": lambda ranks: format_ranks(tuple(ranks)),
        "showable": showable,
        "sizes": lambda sizes: ["?" if size is None else size for size in sizes],
        "count_who": count_names,
        "who": names,
    }
    return fill_template("ringproof.logs", template, values, filters=filters).splitlines()


def ordinal(number: int) -> str:
    """Return the number as a position.

    >>> [ordinal(number) for number in (2, 3, 4, 11, 21, 112)]
    ['2nd', '3rd', '4th', '11th', '21st', '112th']
    """
    teen = number % 100 in (11, 12, 13)
    ending = "th" if teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def counted(number: int, noun: str) -> str:
    """Return a number of things in words.

    >>> [counted(number, "line") for number in (0, 1, 1000)]
    ['0 lines', '1 line', '1,000 lines']
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def rank_text(ranks: Collection[int]) -> str:
    """Return ranks in words, such as ``ranks 0-2,5``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(tuple(ranks))}"


def names(who: Collection[str]) -> str:
    """Return the writers of lines in words: ranks, and the names of those without a rank."""
    ranks = sorted(int(name[5:]) for name in who if name.startswith("rank "))
    rest = sorted(name for name in who if not name.startswith("rank "))
    said = [rank_text(ranks)] if ranks else []
    said += rest[:_MOST_NAMES]
    if len(rest) > _MOST_NAMES:
        said.append(f"{len(rest) - _MOST_NAMES} more")
    return printable(", ".join(said))[:_MOST_TEXT]


def count_names(who: Collection[str]) -> str:
    """Return the names, with their number in front of them where they are many."""
    return names(who) if len(who) <= 2 else f"{len(who)} ranks ({names(who)})"
