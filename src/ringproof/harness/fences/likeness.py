"""The lines of a file that are most like a quotation that is no longer there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringproof.harness.fences.quote import Cut, Quote, Whole
from ringproof.harness.fences.source import SourceLines

SIMILAR_NAMES = 0.6
"""Share of a quote's names, rare ones counting more, that some lines must hold to be its likes."""

SIMILAR_LINES = 0.3
"""Share of a quote's lines, at least two, that must stand there as they are, to be its likes."""

_TELLING = 8  # characters of names and numbers that make a line more than a bracket or `else:`


@dataclass(frozen=True)
class _Window:
    """Lines (indices) that hold part of what was looked for, and how much: 1.0 is enough."""

    first: int
    behind: int
    enough: float


def most_like(
    quote: Quote, source: SourceLines, *, near: int, width: int
) -> tuple[int, int] | None:
    """First and last of the lines that hold most of a quote, or ``None`` if none hold enough.

    Enough are ``SIMILAR_LINES`` of the quote's telling lines, or ``SIMILAR_NAMES`` of its names.

    Args:
        near: The line looked at first; of equals the nearest are taken.
        width: How many lines to look at together.
    """
    here = source.index_from(near)
    by_lines = _best(_lines_held(quote, source), here, width, SIMILAR_LINES, tight=False)
    by_names = _best(_names_held(quote, source), here, width, SIMILAR_NAMES, tight=True)
    best = by_lines if by_lines.enough >= 1 else by_names
    if best.enough < 1:
        return None
    return source.numbers[best.first], source.numbers[best.behind - 1]


@dataclass(frozen=True)
class _Held:
    """What each line of the file holds, and what all of it that is looked for weighs."""

    lines: Sequence[frozenset[str]]
    weights: Mapping[str, float]


def _names_held(quote: Quote, source: SourceLines) -> _Held:
    wanted = quote.tokens
    lines = [held & wanted for held in source.tokens]
    spread = Counter(name for names in lines for name in names)
    return _Held(lines, {name: 1 / math.sqrt(max(spread[name], 1)) for name in wanted})


def _lines_held(quote: Quote, source: SourceLines) -> _Held:
    lines: list[set[str]] = [set() for _ in source.texts]
    weights: dict[str, float] = {}
    for item in quote.items:
        key = item.text if isinstance(item, Whole) else ""
        if isinstance(item, Cut):
            key = item.parts[0]
        if sum(map(str.isalnum, key)) < _TELLING:
            continue
        weights[key] = 1.0
        at: Sequence[int] = source.where.get(key, ())
        if isinstance(item, Cut):
            at = [index for index, text in enumerate(source.texts) if text.startswith(key)]
        for index in at:
            lines[index].add(key)
    return _Held([frozenset(keys) for keys in lines], weights)


def _best(held: _Held, here: int, width: int, share: float, *, tight: bool) -> _Window:
    """The window that weighs most, cut down at its ends.

    Names recur everywhere, so a window of them is cut to the lines that add one (``tight``); lines
    that recur are part of what was quoted, and a single one says nothing.
    """
    inside: Counter[str] = Counter()
    score, best = 0.0, (0.0, 0, 0)
    for at, keys in enumerate(held.lines):
        for key in keys:
            score += 0.0 if inside[key] else held.weights[key]
            inside[key] += 1
        for key in held.lines[at - width] if at >= width else ():
            inside[key] -= 1
            score -= 0.0 if inside[key] else held.weights[key]
        first = max(0, at - width + 1)
        best = max(best, (round(score, 9), -abs(first - here), first))
    window = _trimmed(held.lines, best[2], min(best[2] + width, len(held.lines)), tight=tight)
    found = frozenset[str]().union(*held.lines[window[0] : window[1]])
    if len(found) < (1 if tight else 2):
        return _Window(0, 0, 0.0)
    return _Window(*window, enough=best[0] / (share * sum(held.weights.values())))


def _trimmed(
    lines: Sequence[frozenset[str]], first: int, behind: int, *, tight: bool
) -> tuple[int, int]:
    """The window without lines at its ends that hold nothing; ``tight``: nothing more."""
    inside = Counter(key for keys in lines[first:behind] for key in keys)
    spare = 1 if tight else len(lines)
    while first < behind and all(inside[key] > spare for key in lines[behind - 1]):
        behind -= 1
        inside.subtract(lines[behind])
    while first < behind and all(inside[key] > spare for key in lines[first]):
        inside.subtract(lines[first])
        first += 1
    return first, behind
