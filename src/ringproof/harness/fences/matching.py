"""Finds a quotation in a file: at the named lines, elsewhere, or only in part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringproof.harness.fences.likeness import most_like
from ringproof.harness.fences.model import Placement
from ringproof.harness.fences.quote import Cut, Gap, Item, Quote, Whole, elided, verbatim
from ringproof.harness.fences.source import SourceLines

MAX_STARTS = 500  # lines tried as a quote's first, the nearest ones
MAX_STEPS = 200_000  # of one search; a file made to be slow ends as not found
MAX_LENGTH = 2_000  # lines of a range that are believed
MAX_CUT_LINES = 40  # lines that `f(...)` can stand for


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
    plain, loose = verbatim(lines), elided(lines)
    if not any(not isinstance(item, Gap) for item in loose.items):
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
    likes = most_like(loose, source, near=start, width=width)
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
    if isinstance(item, Whole):
        indices: Sequence[int] = source.where.get(item.text, ())
    else:
        prefix = item.parts[0] if isinstance(item, Cut) else ""
        indices = [at for at, text in enumerate(source.texts) if text.startswith(prefix)]
    here = source.index_from(named.start)
    return sorted(indices, key=lambda at: abs(at - here))[:MAX_STARTS]


def _step(
    item: Item, reached: frozenset[int], source: SourceLines, named: _Range
) -> frozenset[int]:
    count = len(source.texts)
    if isinstance(item, Whole):
        return frozenset(at + 1 for at in reached if at < count and source.texts[at] == item.text)
    if isinstance(item, Gap):
        # Lines may have been added inside a gap, so it may be longer than the named range.
        most = 4 * named.length + 100
        return frozenset(range(min(reached), min(max(reached) + most, count) + 1))
    return frozenset(end for at in reached for end in _cut_ends(item, at, source))


def _cut_ends(item: Cut, at: int, source: SourceLines) -> Iterator[int]:
    """Yield the end of each range of lines from ``at`` for which a line with dots may stand."""
    if at >= len(source.texts) or not source.texts[at].startswith(item.parts[0]):
        return
    joined = ""
    for end in range(at + 1, min(at + MAX_CUT_LINES, len(source.texts)) + 1):
        joined = f"{joined} {source.texts[end - 1]}" if joined else source.texts[at]
        if _fits(item.parts, joined):
            yield end


def _fits(parts: tuple[str, ...], text: str) -> bool:
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
