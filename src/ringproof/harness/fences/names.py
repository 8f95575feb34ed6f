"""Finds names beside a path in the file."""

from __future__ import annotations

import re

from ringproof.harness.fences.matching import place_lines
from ringproof.harness.fences.model import Placement
from ringproof.harness.fences.source import SourceLines

_IMPORT = re.compile(r"\s*(?:from|import|using|#\s*include)\b")


def place_name(name: str, source: SourceLines) -> Placement:
    """Check whether a file has a listed name.

    A dotted name needs all of its parts, and an option its ``--text`` or its variable. The result
    is exact for whole words, and changed for parts of longer words or only some parts.
    """
    words = source.words
    bare = name.removesuffix("()")
    if bare.startswith("--"):
        found = [bare in source.raw or bare[2:].replace("-", "_") in words]
    else:
        found = [part in words for part in re.split(r"\.|::", bare)]
    if all(found):
        return Placement("exact")
    if any(found) or (len(found) == 1 and bare in source.raw):
        return Placement("changed", why=f"{name}: only a part of it is in the file")
    return Placement("missing", why=f"{name} is not in the file")


def place_name_at(name: str, source: SourceLines, start: int, end: int) -> Placement:
    """Find the name beside ``path:line`` in the file.

    The result is exact if the name is in these lines, or if they are inside the Python function or
    class of that name. It is moved if the name is defined once, or occurs once outside imports,
    elsewhere. It is changed if the name occurs in several other places, since the meant one is
    unknown.
    """
    last = re.split(r"\.|::", name.removesuffix("()"))[-1]
    pattern = re.compile(rf"(?<!\w){re.escape(last)}(?!\w)")
    hits = [number for number, line in enumerate(source.lines, 1) if pattern.search(line)]
    if not hits:
        return Placement("missing", why=f"{name} is not in the file")
    definitions = source.definitions.get(last, ())
    inside = any(first <= start and end <= until for first, until in definitions)
    if 1 <= start <= end <= source.total and (inside or any(start <= at <= end for at in hits)):
        return Placement("exact")
    uses = [number for number in hits if not _IMPORT.match(source.lines[number - 1])]
    places = [first for first, _ in definitions] or uses or hits
    if len(places) != 1:
        outside = place_lines(source, start, end).status == "missing"
        why = f"{name} is not at these lines, and {len(places)} times elsewhere"
        return Placement("missing" if outside else "changed", why=why)
    new_end = min(places[0] + max(0, end - start), source.total)
    return Placement("moved", places[0], new_end, why=f"{name} moved to {places[0]}")
