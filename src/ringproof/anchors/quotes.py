"""Finds quoted lines and names in a file: at the named lines, elsewhere, or only in part."""

from __future__ import annotations

import bisect
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ringproof.anchors.sources import SourceLines, keys_of
from ringproof.anchors.symbols import folded

Status = Literal["exact", "moved", "changed", "missing"]

MAX_SCANNED = 20_000_000  # characters, so that a file made to be slow ends as not found
MAX_LENGTH = 2_000  # lines of a range that are believed
SIMILARITY = 0.3
"""Fraction of a quote's lines and names that similar lines must contain; rare ones weigh more. At
0.4, quotations in Megatron-Bridge's skills of which every third line is there count as missing."""

_WORD = re.compile(r"\w+")
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


@dataclass(frozen=True)
class _Range:
    start: int
    end: int

    @property
    def length(self) -> int:
        return max(1, min(self.end - self.start + 1, MAX_LENGTH))

    def is_in(self, source: SourceLines) -> bool:
        return 1 <= self.start <= self.end <= source.total


@dataclass(frozen=True)
class _Quote:
    """A quotation as pieces of text, between which anything may stand.

    The pieces are sought in `SourceLines.text` one after the other. The first place of each is
    enough: a later one would leave less room for the next piece.

    Attributes:
        pieces: A piece that begins a line has the line end before it, and so at its end.
        open_start, open_end: Whether the quotation begins or ends with a gap.
    """

    pieces: tuple[str, ...]
    open_start: bool = False
    open_end: bool = False

    def end(self, text: str, at: int, before: int) -> int | None:
        """Return where the quote ends that begins at an offset; ``None`` if it does not."""
        if not text.startswith(self.pieces[0], at):
            return None
        at += len(self.pieces[0])
        for piece in self.pieces[1:]:
            # Lines with nothing between them share a line end.
            shared = piece.startswith("\n") and text.startswith("\n", at - 1)
            found = text.find(piece, at - shared, before)
            if found < 0:
                return None
            at = found + len(piece)
        return at

    def fits(self, text: str, at: int, end: int) -> bool:
        """Return whether it begins at one offset and ends at another."""
        last = end - len(self.pieces[-1])
        if len(self.pieces) == 1:
            is_there = at == last or (self.open_start and at <= last)
            return is_there and text.startswith(self.pieces[0], last)
        rest = _Quote(self.pieces[:-1]).end(text, at, end)
        shared = self.pieces[-1].startswith("\n")
        return rest is not None and rest - shared <= last and text.startswith(self.pieces[-1], last)


def _elided(lines: Sequence[str]) -> _Quote | None:
    """Return a quote in which ``...`` and ``…`` stand for omitted text; ``None`` if it is empty."""
    pieces: list[str] = []
    gaps: list[bool] = []
    for text in lines:
        first, *others = (part.strip() for part in _DOTS.split(text))
        gaps.append(not first or _GAP.fullmatch(text) is not None)
        if gaps[-1]:
            continue
        if len(gaps) > 1 and not gaps[-2]:
            pieces[-1] += first  # the line end is there already
        else:
            pieces.append(f"\n{first}")
        pieces += others
        pieces[-1] += "\n"
    return _Quote(tuple(pieces), gaps[0], gaps[-1]) if pieces else None


def place_quote(lines: Sequence[str], source: SourceLines, start: int, end: int) -> Placement:
    """Find quoted lines in a file, starting from the named lines.

    Indentation, alignment, trailing white space and blank lines do not count. ``...`` in a line
    stands for any text. On its own line, or at the start of a comment, it stands for any lines. The
    result is exact if the first and last quoted lines are the first and last named lines; a quote
    that begins or ends with a gap may be inside. Of several places, one with the same length is
    preferred, then the shortest, then the nearest.
    """
    named = _Range(start, end)
    texts = [text for text in map(folded, lines) if text]
    loose = _elided(texts)
    if loose is None:
        return place_lines(source, start, end)
    plain = _Quote(("\n" + "".join(f"{text}\n" for text in texts),))  # dots have no meaning
    both = dict.fromkeys((plain, loose))
    if named.is_in(source) and any(_is_exact(quote, source, named) for quote in both):
        return Placement("exact")
    for quote in both:
        if places := _places(quote, source, named, len(texts)):
            _, first, last = min(places)
            return Placement("moved", first, last, why=f"moved to {first}-{last}")
    if max(start, end) > source.total:
        return Placement("missing", why=f"past the end ({source.total} lines)")
    likes = _most_like(texts, source, near=start, width=max(named.length, len(texts)))
    if likes is None:
        return Placement("missing", why="the quoted text is not in the file")
    why = f"only partly there; most like {likes[0]}-{likes[1]}"
    return Placement("changed", *likes, why=why)


def place_lines(source: SourceLines, start: int, end: int) -> Placement:
    """Check lines without a quotation, which can exist, be blank, or be past the end."""
    if not _Range(start, end).is_in(source):
        return Placement("missing", why=f"past the end ({source.total} lines)", quoted=False)
    if source.index_from(start) == source.index_until(end):
        return Placement("changed", why="blank lines", quoted=False)
    return Placement("exact", quoted=False)


def _is_exact(quote: _Quote, source: SourceLines, named: _Range) -> bool:
    text = source.text
    at = source.offsets[source.index_from(named.start)]
    end = source.offsets[source.index_until(named.end)] + 1
    if quote.open_start:
        at = text.find(quote.pieces[0], at, end)
    if quote.open_end:
        return at >= 0 and quote.end(text, at, end) is not None
    return at >= 0 and quote.fits(text, at, end)


_Rank = tuple[bool, int, int]


def _places(
    quote: _Quote, source: SourceLines, named: _Range, lines: int
) -> list[tuple[_Rank, int, int]]:
    """Return the places of a quote of some lines: their rank, lowest first, and their lines."""
    text, offsets = source.text, source.offsets
    if not all(piece in text for piece in quote.pieces):
        return []
    here = source.index_from(named.start)
    scanned, found = 0, []
    for at in sorted(_occurrences(quote.pieces[0], text), key=lambda at: abs(at - offsets[here])):
        first = bisect.bisect_left(offsets, at)
        # Lines may have been added inside a gap, so it may be longer than the named range.
        behind = min(first + lines + 4 * named.length + 100, len(source.texts))
        end = quote.end(text, at, offsets[behind] + 1)
        scanned += offsets[behind] + 1 - at
        if scanned > MAX_SCANNED:
            break
        if end is None:
            continue
        start = source.numbers[first]
        wished = min(start + named.length - 1, source.total)
        last = source.numbers[bisect.bisect_left(offsets, end - 1) - 1]
        same = offsets[source.index_until(wished)] + 1
        if quote.open_end:
            last = max(last, wished)
        elif wished in source.numbers[first:behind] and quote.fits(text, at, same):
            last = wished
        rank = (last - start + 1 != named.length, last - start, abs(start - named.start))
        found.append((rank, start, last))
    return found


def _occurrences(piece: str, text: str) -> Iterator[int]:
    """Yield where a piece begins. Places may overlap: the end of a line is before the next."""
    at = text.find(piece)
    while at >= 0:
        yield at
        at = text.find(piece, at + 1)


def place_name(name: str, source: SourceLines) -> Placement:
    """Check whether a file has a listed name.

    A dotted name needs all of its parts, and an option its ``--text`` or its variable. The result
    is exact for whole words, and changed for parts of longer words or only some parts.
    """
    raw = "\n".join(source.lines)
    words = frozenset(_WORD.findall(raw))
    bare = name.removesuffix("()")
    if bare.startswith("--"):
        found = [bare in raw or bare[2:].replace("-", "_") in words]
    else:
        found = [part in words for part in re.split(r"\.|::", bare)]
    if all(found):
        return Placement("exact")
    if any(found) or (len(found) == 1 and bare in raw):
        return Placement("changed", why=f"{name}: only a part of it is in the file")
    return Placement("missing", why=f"{name} is not in the file")


def place_name_at(name: str, source: SourceLines, start: int, end: int) -> Placement:
    """Find the name beside ``path:line`` in the file.

    The result is exact if the name is in these lines, or if they are inside the Python definition
    of that name. It is moved if the name is defined once, or occurs once outside imports,
    elsewhere. It is changed if the name occurs in several other places, since the meant one is
    unknown.
    """
    last = re.split(r"\.|::", name.removesuffix("()"))[-1]
    pattern = re.compile(rf"(?<!\w){re.escape(last)}(?!\w)")
    hits = [number for number, line in enumerate(source.lines, 1) if pattern.search(line)]
    if not hits:
        return Placement("missing", why=f"{name} is not in the file")
    definitions = source.definitions.get(last, ())
    is_inside = any(first <= start and end <= until for first, until in definitions)
    is_there = is_inside or any(start <= at <= end for at in hits)
    if is_there and _Range(start, end).is_in(source):
        return Placement("exact")
    uses = [number for number in hits if not _IMPORT.match(source.lines[number - 1])]
    places = [first for first, _ in definitions] or uses or hits
    if len(places) != 1:
        outside = place_lines(source, start, end).status == "missing"
        why = f"{name} is not at these lines, and {len(places)} times elsewhere"
        return Placement("missing" if outside else "changed", why=why)
    new_end = min(places[0] + max(0, end - start), source.total)
    return Placement("moved", places[0], new_end, why=f"{name} moved to {places[0]}")


def _most_like(
    quote: Sequence[str], source: SourceLines, *, near: int, width: int
) -> tuple[int, int] | None:
    """Return the first and last line of the range with the most lines and names of a quote.

    Whole-line comments count only if there is nothing else. A name counts less the more lines have
    it.

    Args:
        near: Line near which to search. Of equal ranges the nearest is chosen.
        width: Number of lines in a range.

    Returns:
        The lines; ``None`` if less than ``SIMILARITY`` of the quote is in any range.
    """
    code = [line for line in quote if not _COMMENT.match(line)] or quote
    wanted = frozenset[str]().union(*map(keys_of, code))
    keys = [wanted & found for found in source.keys]
    spread = Counter(key for found in keys for key in found)
    weights = {key: 1 / math.sqrt(max(spread[key], 1)) for key in wanted}
    inside: Counter[str] = Counter()
    score, best, here = 0.0, (0.0, 0, 0), source.index_from(near)
    for at, found in enumerate(keys):
        score += sum(weights[key] for key in found if not inside[key])
        inside.update(found)
        left = keys[at - width] if at >= width else ()
        inside.subtract(left)
        score -= sum(weights[key] for key in left if not inside[key])
        first = max(0, at - width + 1)
        best = max(best, (round(score, 9), -abs(first - here), first))
    if best[0] < SIMILARITY * sum(weights.values()):
        return None
    first = best[2]
    return source.numbers[first], source.numbers[min(first + width, len(keys)) - 1]
