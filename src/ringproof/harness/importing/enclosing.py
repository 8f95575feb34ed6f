"""Which symbols a range of lines is about."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from ringproof.harness.anchors.protocol import Definition
from ringproof.harness.anchors.python import PythonDefinition

MAX_MEMBERS = 6
"""Members of a class or a file up to which each of those quoted is an anchor of its own."""

_SEPARATOR = re.compile(r"\.|::")
_CLASSES = frozenset(("type", "enum"))


def enclosing(
    symbols: Mapping[str, Definition], start: int, end: int
) -> list[tuple[str, Definition]]:
    """The innermost function or field around the lines; where that is a class, its members there.

    Args:
        symbols: All of a file, as `catalog` gives them.

    Returns:
        Name and definition, by line; nothing where the lines are in no named symbol.
    """
    around = [item for item in symbols.items() if item[1].start <= start and end <= item[1].end]
    innermost = min(around, key=_height, default=None)
    if innermost is not None and not is_class(innermost[1]):
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


def is_class(found: Definition) -> bool:
    """Whether a definition is one of its members' scope rather than a thing that does something."""
    if isinstance(found, PythonDefinition):
        return isinstance(found.found.nodes[0], ast.ClassDef)
    return getattr(getattr(found, "found", None), "kind", "") in _CLASSES


def name_parts(symbol: str) -> list[str]:
    """The names of a symbol, outermost first, without their numbers."""
    return [part.partition("#")[0] for part in _SEPARATOR.split(symbol)]


def _scope(name: str, symbols: Mapping[str, Definition]) -> str | None:
    """The symbol around a symbol, ``""`` for none; ``None`` for options, which are in functions."""
    if name.startswith("--"):
        return None
    ends = [match.start() for match in _SEPARATOR.finditer(name)]
    return next((name[:end] for end in reversed(ends) if name[:end] in symbols), "")
