"""Finds quoted lines and names in a file: at the named lines, elsewhere, or only in part."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ringproof.code.files import SourceLines, fold, tokens

Status = Literal["exact", "moved", "changed", "missing"]

MAX_STARTS = 500  # lines tried as a quote's first, the nearest ones
MAX_STEPS = 200_000  # of one search; a file made to be slow ends as not found
MAX_LENGTH = 2_000  # lines of a range that are believed
MAX_CUT_LINES = 40  # lines that `f(...)` can stand for
SIMILAR_NAMES = 0.6
"""Fraction of a quote's names that similar lines must contain. Rare names have a higher weight."""

SIMILAR_LINES = 0.3
"""Fraction of a quote's lines, at least two, that similar lines must contain unchanged."""

_TELLING = 8  # characters of names and numbers that make a line more than a bracket or `else:`
_DOTS = re.compile(r"\.\.\.|…")
# `...` alone, in brackets, or at the start of any comment.
_GAP = re.compile(r"[\[(<{]?(?:\.\.\.|…)[\])>}]?[,;]?|(?:#|//|/\*|--|<!--|%|;)\s*(?:\.\.\.|…).*")
_COMMENT = re.compile(r"#|//|/\*|\*/|<!--")
_IMPORT = re.compile(r"\s*(?:from|import|using|#\s*include)\b")


@dataclass(frozen=True)
class Placement:
    """Result of checking a mention.

    Attributes:
        status: ``exact``: at the named lines; ``moved``: elsewhere in the file, at ``new_start`` to
            ``new_end``; ``changed``: only partly found, most similar at these lines if they are
            given; ``missing``: no file, no text, or lines past the end.
        why: Explanation of the problem; empty if there is none.
        quoted: False without a quotation, so that only the existence of the lines was checked.
    """

    status: Status
    new_start: int | None = None
    new_end: int | None = None
    why: str = ""
    quoted: bool = True


Item = tuple[str, ...]
"""A quoted line: the parts between dots, so one part if it is quoted in full, and none for a gap,
which stands for any number of lines.
"""


@dataclass(frozen=True)
class Quote:
    """A quotation that can be searched.

    Attributes:
        items: Items from the first to the last line that is not a gap.
        open_start, open_end: Whether it begins or ends with a gap.
    """

    items: tuple[Item, ...]
    open_start: bool = False
    open_end: bool = False

    @property
    def tokens(self) -> frozenset[str]:
        """Quoted names; those of whole-line comments only if there are no others."""
        lines = [" ".join(item) for item in self.items]
        code = [line for line in lines if not _COMMENT.match(line)]
        return frozenset().union(*(tokens(line) for line in code)) or frozenset().union(
            *(tokens(line) for line in lines)
        )


def _elided(lines: Sequence[str]) -> Quote:
    """Return a quote in which ``...`` and ``…`` stand for omitted text."""
    items: list[Item] = []
    for text in filter(None, map(fold, lines)):
        parts = tuple(part.strip() for part in _DOTS.split(text))
        item = () if _GAP.fullmatch(text) or not parts[0] else parts
        if item or not items or items[-1]:  # one gap for several
            items.append(item)
    open_start, open_end = (bool(items) and not items[at] for at in (0, -1))
    inner = items[open_start : len(items) - (open_end and len(items) > 1)]
    return Quote(tuple(inner), open_start, open_end)


@dataclass(frozen=True)
class _Match:
    """A quote found at index ``first``, with the possible indices of its last line."""

    first: int
    ends: tuple[int, ...]


@dataclass(frozen=True)
class _Range:
    start: int
    end: int

    @property
    def length(self) -> int:
        return max(1, min(self.end - self.start + 1, MAX_LENGTH))


def place_quote(lines: Sequence[str], source: SourceLines, start: int, end: int) -> Placement:
    """Find quoted lines in a file, starting from the named lines.

    Indentation, alignment, trailing white space and blank lines do not count. ``...`` in a line
    stands for any text. On its own line, or at the start of a comment, it stands for any lines. The
    result is exact if the first and last quoted lines are the first and last named lines; a quote
    that begins or ends with a gap may be inside. Of several places, one with the same length is
    preferred, then the shortest, then the nearest.
    """
    named = _Range(start, end)
    plain = Quote(tuple((text,) for text in map(fold, lines) if text))  # dots have no meaning
    loose = _elided(lines)
    if not any(loose.items):
        return place_lines(source, start, end)
    found = [(quote, _matches(quote, source, named)) for quote in dict.fromkeys((plain, loose))]
    if any(_is_exact(match, quote, source, named) for quote, some in found for match in some):
        return Placement("exact")
    for quote, matches in found:
        if matches:
            return _moved(quote, matches, source, named)
    if start > source.total or end > source.total:
        return Placement("missing", why=f"past the end ({source.total} lines)")
    width = max(named.length, len(loose.items))
    likes = _most_like(loose, source, near=start, width=width)
    if likes is None:
        return Placement("missing", why="the quoted text is not in the file")
    why = f"only partly there; most like {likes[0]}-{likes[1]}"
    return Placement("changed", *likes, why=why)


def place_lines(source: SourceLines, start: int, end: int) -> Placement:
    """Check lines without a quotation, which can exist, be blank, or be past the end."""
    if not 1 <= start <= end <= source.total:
        return Placement("missing", why=f"past the end ({source.total} lines)", quoted=False)
    if source.index_from(start) == source.index_until(end):
        return Placement("changed", why="blank lines", quoted=False)
    return Placement("exact", quoted=False)


def _matches(quote: Quote, source: SourceLines, named: _Range) -> list[_Match]:
    steps = 0
    found = []
    for first in _starts(quote.items[0], source, named):
        reached: frozenset[int] = frozenset((first,))
        for item in quote.items:
            reached = _step(item, reached, source, named)
            steps += len(reached) + 1
            if not reached:
                break
        if reached:
            found.append(_Match(first, tuple(sorted(index - 1 for index in reached))))
        if steps > MAX_STEPS:
            break
    return found


def _starts(item: Item, source: SourceLines, named: _Range) -> list[int]:
    if len(item) == 1:
        indices: Sequence[int] = source.where.get(item[0], ())
    else:
        indices = source.starting_with(item[0] if item else "")
    here = source.index_from(named.start)
    return sorted(indices, key=lambda at: abs(at - here))[:MAX_STARTS]


def _step(
    item: Item, reached: frozenset[int], source: SourceLines, named: _Range
) -> frozenset[int]:
    count = len(source.texts)
    if len(item) == 1:
        return frozenset(at + 1 for at in reached if at < count and source.texts[at] == item[0])
    if not item:
        # Lines may have been added inside a gap, so it may be longer than the named range.
        most = 4 * named.length + 100
        return frozenset(range(min(reached), min(max(reached) + most, count) + 1))
    return frozenset(end for at in reached for end in _cut_ends(item, at, source))


def _cut_ends(item: Item, at: int, source: SourceLines) -> Iterator[int]:
    """Yield the end of each range of lines from ``at`` for which a line with dots may stand."""
    if at >= len(source.texts) or not source.texts[at].startswith(item[0]):
        return
    joined = ""
    for end in range(at + 1, min(at + MAX_CUT_LINES, len(source.texts)) + 1):
        joined = f"{joined} {source.texts[end - 1]}" if joined else source.texts[at]
        if _fits(item, joined):
            yield end


def _fits(parts: Item, text: str) -> bool:
    """Return whether the parts occur in order, the last at the end, in linear time."""
    at = len(parts[0])
    for part in parts[1:-1]:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(text) - len(parts[-1]) >= at and text.endswith(parts[-1])


def _is_exact(match: _Match, quote: Quote, source: SourceLines, named: _Range) -> bool:
    if not 1 <= named.start <= named.end <= source.total:
        return False
    first, last = source.index_from(named.start), source.index_until(named.end) - 1
    starts = match.first >= first if quote.open_start else match.first == first
    if quote.open_end:
        return starts and match.first <= last and match.ends[0] <= last
    return starts and last in match.ends


def _moved(
    quote: Quote, matches: Sequence[_Match], source: SourceLines, named: _Range
) -> Placement:
    def rank(match: _Match) -> tuple[bool, int, int]:
        start, end = _lines(match, quote, source, named)
        return end - start + 1 != named.length, end - start, abs(start - named.start)

    start, end = _lines(min(matches, key=rank), quote, source, named)
    return Placement("moved", start, end, why=f"moved to {start}-{end}")


def _lines(match: _Match, quote: Quote, source: SourceLines, named: _Range) -> tuple[int, int]:
    """Return the first and last line of a match. With an open end, keep the named length."""
    start = source.numbers[match.first]
    wished = start + named.length - 1
    ends = [source.numbers[index] for index in match.ends]
    if quote.open_end:
        return start, max(ends[0], min(wished, source.total))
    return start, wished if wished in ends else ends[0]


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


@dataclass(frozen=True)
class _Keys:
    """What makes a range of lines similar to a quote: lines, or names.

    Attributes:
        on: Searched keys on each line of the file.
        weights: Weight of each key.
        share: Fraction of the weights that similar lines must contain.
        least: Number of different keys that they must contain.
        tight: Whether a range is trimmed to the lines that add a key. Names occur many times, but
            lines that occur repeatedly are part of the quote.
    """

    on: Sequence[frozenset[str]]
    weights: Mapping[str, float]
    share: float
    least: int
    tight: bool


def _most_like(
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
    for keys in (_line_keys(quote, source), _name_keys(quote, source)):
        first, behind = _best(keys, here, width)
        if behind:
            return source.numbers[first], source.numbers[behind - 1]
    return None


def _name_keys(quote: Quote, source: SourceLines) -> _Keys:
    wanted = quote.tokens
    lines = [held & wanted for held in source.tokens]
    spread = Counter(name for names in lines for name in names)
    weights = {name: 1 / math.sqrt(max(spread[name], 1)) for name in wanted}
    return _Keys(lines, weights, SIMILAR_NAMES, least=1, tight=True)


def _line_keys(quote: Quote, source: SourceLines) -> _Keys:
    lines: list[set[str]] = [set() for _ in source.texts]
    weights: dict[str, float] = {}
    for item in quote.items:
        key = item[0] if item else ""
        if sum(map(str.isalnum, key)) < _TELLING:
            continue
        weights[key] = 1.0
        at = source.where.get(key, ()) if len(item) == 1 else source.starting_with(key)
        for index in at:
            lines[index].add(key)
    return _Keys(list(map(frozenset, lines)), weights, SIMILAR_LINES, least=2, tight=False)


def _best(keys: _Keys, here: int, width: int) -> tuple[int, int]:
    """Return the trimmed range of lines with the highest weight; empty if it is not enough."""
    inside: Counter[str] = Counter()
    score, best = 0.0, (0.0, 0, 0)
    for at, found in enumerate(keys.on):
        for key in found:
            score += 0.0 if inside[key] else keys.weights[key]
            inside[key] += 1
        for key in keys.on[at - width] if at >= width else ():
            inside[key] -= 1
            score -= 0.0 if inside[key] else keys.weights[key]
        first = max(0, at - width + 1)
        best = max(best, (round(score, 9), -abs(first - here), first))
    first, behind = _trimmed(keys, best[2], min(best[2] + width, len(keys.on)))
    different = len(frozenset[str]().union(*keys.on[first:behind]))
    is_enough = different >= keys.least and best[0] >= keys.share * sum(keys.weights.values())
    return (first, behind) if is_enough else (0, 0)


def _trimmed(keys: _Keys, first: int, behind: int) -> tuple[int, int]:
    """Remove lines at the ends of a range that have no key, or no new key if it must be tight."""
    inside = Counter(key for found in keys.on[first:behind] for key in found)
    spare = 1 if keys.tight else len(keys.on)
    while first < behind and all(inside[key] > spare for key in keys.on[behind - 1]):
        behind -= 1
        inside.subtract(keys.on[behind])
    while first < behind and all(inside[key] > spare for key in keys.on[first]):
        inside.subtract(keys.on[first])
        first += 1
    return first, behind
