"""Finds the lines of a file that are most similar to a quotation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringproof.harness.fences.quote import Cut, Quote, Whole
from ringproof.harness.fences.source import SourceLines

SIMILAR_NAMES = 0.6
"""Fraction of a quote's names that similar lines must contain. Rare names have a higher weight."""

SIMILAR_LINES = 0.3
"""Fraction of a quote's lines, at least two, that similar lines must contain unchanged."""

_TELLING = 8  # characters of names and numbers that make a line more than a bracket or `else:`


@dataclass(frozen=True)
class _Window:
    """Range of lines (indices) and its score; a score of 1.0 is enough."""

    first: int
    behind: int
    enough: float


def most_like(
    quote: Quote, source: SourceLines, *, near: int, width: int
) -> tuple[int, int] | None:
    """Return the first and last line of the most similar range, or ``None``.

    A range is similar enough if it contains ``SIMILAR_LINES`` of the quote's distinctive lines, or
    ``SIMILAR_NAMES`` of its names.

    Args:
        near: Line near which to search. Of equal ranges the nearest is chosen.
        width: Number of lines in a range.
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
    """Searched keys on each line of the file, and the weight of each key."""

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
    """Return the window with the highest weight, trimmed at its ends.

    Names occur many times, so a window of names is trimmed to the lines that add one (``tight``).
    Lines that occur repeatedly are part of the quote, and a single line is not significant.
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
    """Remove lines without keys at the ends of a window; ``tight``: also without new keys."""
    inside = Counter(key for keys in lines[first:behind] for key in keys)
    spare = 1 if tight else len(lines)
    while first < behind and all(inside[key] > spare for key in lines[behind - 1]):
        behind -= 1
        inside.subtract(lines[behind])
    while first < behind and all(inside[key] > spare for key in lines[first]):
        inside.subtract(lines[first])
        first += 1
    return first, behind
