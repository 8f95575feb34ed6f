"""Finds the symbols around a range of lines."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ringproof.harness.code.definitions import Definition

MAX_MEMBERS = 6
"""Members of a class or a file up to which each of those quoted is an anchor of its own."""

_SEPARATOR = re.compile(r"\.|::")


def enclosing(
    symbols: Mapping[str, Definition], start: int, end: int
) -> list[tuple[str, Definition]]:
    """Return the innermost function or field around the lines, or a class's members there.

    Args:
        symbols: All symbols of a file, from `catalog`.

    Returns:
        Names and definitions, by line; empty if the lines are outside of named symbols.
    """
    around = [item for item in symbols.items() if item[1].start <= start and end <= item[1].end]
    innermost = min(around, key=_height, default=None)
    if innermost is not None and not innermost[1].is_class:
        return [innermost]
    scope = "" if innermost is None else innermost[0]
    members = [
        item
        for item in symbols.items()
        if item[1].start <= end and start <= item[1].end and _scope(item[0], symbols) == scope
    ]
    if 1 <= len(members) <= MAX_MEMBERS:
        return sorted(members, key=lambda item: item[1].start)
    return [] if innermost is None else [innermost]


def _height(item: tuple[str, Definition]) -> tuple[int, int]:
    return item[1].end - item[1].start, -len(item[0])


def name_parts(symbol: str) -> list[str]:
    """Return the names of a symbol, outermost first, without their numbers."""
    return [part.partition("#")[0] for part in _SEPARATOR.split(symbol)]


def _scope(name: str, symbols: Mapping[str, Definition]) -> str | None:
    """Return the symbol around a symbol, ``""`` for none, or ``None`` for options."""
    if name.startswith("--"):
        return None
    ends = [match.start() for match in _SEPARATOR.finditer(name)]
    return next((name[:end] for end in reversed(ends) if name[:end] in symbols), "")
