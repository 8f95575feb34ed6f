"""Converts mentions of code in a skill to anchors, if the code is found, or to open claims."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ValidationError

from ringproof.cards.model import Anchor
from ringproof.code.definitions import Definition
from ringproof.code.files import MARKDOWN_SUFFIXES, SourceRefused
from ringproof.code.languages import has_symbols
from ringproof.code.quotes import place_name_at, place_quote
from ringproof.errors import InputError
from ringproof.fences.mentions import MAX_DOCUMENT_BYTES, Mention, find_mentions
from ringproof.importing.draft import CardDraft, slug
from ringproof.importing.roots import RootFile, Roots
from ringproof.importing.source import SkillSource
from ringproof.upstream.tree import UpstreamError, UpstreamUnavailable

MAX_MEMBERS = 6
"""Members of a class or a file up to which each of those quoted is an anchor of its own."""

_SEPARATOR = re.compile(r"\.|::")
MAX_EXPECTED = 6

_NAME = re.compile(r"[A-Za-z_]\w{2,}(?:\.[A-Za-z_]\w*)*")
_STRING = re.compile(
    r"(?P<long>\"\"\"|''')(?P<text>.*?)(?:(?P=long)|\Z)"
    r"|#[^\n]*|\"(?P<double>(?:\\.|[^\"\\\n])*)\"|'(?P<single>(?:\\.|[^'\\\n])*)'",
    re.DOTALL,
)
_FIELD = re.compile(r"\{[^}]*\}|\\.|\n")
_LITERAL_LENGTHS = range(4, 101)
_OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]+")
_FILE = re.compile(r"\S+\.(?:py|md|yaml|yml|sh|json|toml)\b(?::\d+(?:-\d+)?)?")
_TELLING = re.compile(r"\w_\w|[a-z][A-Z]|\d[A-Z]|[A-Z]{2}.*[a-z]")
_COMMON = frozenset((*keyword.kwlist, *dir(builtins), "self", "cls", "args", "kwargs"))


Outcome = tuple[tuple[str, ...], str]
"""Ids of the anchors that a mention of code became, or the reason why there are none."""


def add_documents(
    source: SkillSource, code: CodeAnchors, draft: CardDraft
) -> Mapping[str, Mapping[str, int]]:
    """Convert every ``start:end:path`` fence and ``path:line`` of the Markdown files.

    Each becomes an anchor, or otherwise a claim with path and lines.

    Returns:
        The numbers of ``fences`` and ``inline`` mentions that were ``found`` and ``anchored``.
    """
    counts = {kind: {"found": 0, "anchored": 0} for kind in ("fences", "inline")}
    done: set[tuple[object, ...]] = set()
    for name, mention, prose in _mentions(source):
        key = (name, mention.path, mention.start, mention.end, mention.quote)
        if key in done:
            continue
        done.add(key)
        anchors, why = code.add(mention, name, prose)
        count = counts["fences" if mention.kind == "fence" else "inline"]
        count["found"] += 1
        count["anchored"] += bool(anchors)
        if not anchors:
            words = f"{mention.path.rpartition('/')[2]} {mention.start}"
            says = _says(name, mention)
            draft.say(draft.claims, "code", words, says, f"not anchored: {why}")
    return counts


def _mentions(source: SkillSource) -> Iterator[tuple[str, Mention, str]]:
    """Yield document, mention, and the text of its line."""
    for name in source.files:
        if not name.lower().endswith(MARKDOWN_SUFFIXES):
            continue
        data = (source.folder / name).read_bytes()[: MAX_DOCUMENT_BYTES + 1]
        try:
            found = find_mentions(data, name)
        except InputError:
            continue  # lint has a rule for such documents
        lines = data.decode("utf-8", "replace").splitlines()
        for mention in found:
            if mention.kind != "symbol":
                line = lines[mention.line - 1] if mention.line <= len(lines) else ""
                yield name, mention, line


def _says(name: str, mention: Mention) -> str:
    more = "" if mention.end == mention.start else f"-{mention.end}"
    lines = f"{mention.start}{more}"
    if mention.kind == "fence":
        return f"{name} quotes lines {lines} of {mention.path}."
    named = f" for {mention.quote[0]}" if mention.quote else ""
    return f"{name} points to line {lines} of {mention.path}{named}."


@dataclass(frozen=True)
class _Lines:
    """Lines of a file that a mention means."""

    place: RootFile
    start: int
    end: int


@dataclass
class CodeAnchors:
    """Converts mentions to anchors of a draft, with one anchor for each place in the code."""

    roots: Roots
    draft: CardDraft
    _known: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    _catalogs: dict[tuple[str, str], Mapping[str, Definition]] = field(default_factory=dict)

    def add(self, mention: Mention, said_by: str, prose: str) -> Outcome:
        """Look up one mention.

        Args:
            said_by: Document or list with the mention, for the anchor's role.
            prose: Text around the mention, whose identifiers the code must contain.
        """
        if not self.roots.roots:
            return (), "no --upstream was given to look it up in"
        is_fence = mention.kind == "fence"
        try:
            places = self.roots.find(mention.path, anywhere=not is_fence)
        except SourceRefused as error:
            return (), f"the file {error}"
        if not places:
            lacking = self.roots.lacking(mention.path)
            return (), f"no --upstream {lacking}=SPEC was given" if lacking else "no such file"
        words = of_code(mention.quote) if is_fence else of_prose(prose, *mention.quote)
        found = _quoted(mention, places[0]) if is_fence else self._named(mention, places, words)
        if isinstance(found, str):
            return (), found
        symbols = self._symbols(found)
        if not symbols:
            path = found.place.path
            kind = f"a .{path.rpartition('.')[2]} file has no symbols"
            known = "no symbol encloses it" if has_symbols(path) else kind
            return (), f"the text is there, but {known}"
        ids = [self._anchor(mention, found, words, symbol, said_by) for symbol in symbols]
        made = tuple(dict.fromkeys(name for name in ids if name))
        return made, "" if made else "its symbol cannot be named in an anchor"

    def _named(
        self, mention: Mention, places: Sequence[RootFile], words: Sequence[str]
    ) -> _Lines | str:
        """Return the lines that contain a word which stands beside a ``path:line``."""
        if not words:
            return "nothing beside it says what stands there"
        meant = [lines for place in places if (lines := _meant(mention, place)) is not None]
        fitting = [
            lines
            for lines in meant
            if any(_fits(mention, item, words) for item in self._symbols(lines))
        ]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            return f"{len(fitting)} files of that name could be meant"
        nothing = "nothing that is named beside it occurs there"
        return nothing if meant else "past the end of the file"

    def _symbols(self, lines: _Lines) -> list[tuple[str, Definition]]:
        root, path = lines.place.root, lines.place.path
        key = (root.name, path)
        if key not in self._catalogs:
            try:
                known = root.resolver.module(path).catalog() if has_symbols(path) else {}
                self._catalogs[key] = known
            except (ValueError, UpstreamError, UpstreamUnavailable, FileNotFoundError):
                self._catalogs[key] = {}
        return _enclosing(self._catalogs[key], lines.start, lines.end)

    def _anchor(
        self,
        mention: Mention,
        lines: _Lines,
        words: Sequence[str],
        item: tuple[str, Definition],
        said_by: str,
    ) -> str:
        root, path = lines.place.root, lines.place.path
        symbol, found = item
        own = _name_parts(symbol)[-1]  # a symbol always contains its own name
        wanted = [word for word in words if word.rpartition(".")[2] != own]
        expects = _inside(found, wanted, lines.place.source.raw)
        role = f"{said_by} points to it as {mention.path}:{mention.start}."
        if mention.kind == "fence":
            role = f"{said_by} quotes it as {mention.start}:{mention.end}:{mention.path}."
        known = self._known.get((root.name, path, symbol))
        if known is not None:
            merged = dict.fromkeys((*known.get("expects", ()), *expects))
            if merged:
                known["expects"] = list(merged)
            if role not in known["role"] and len(known["role"]) + len(role) < 2_000:
                known["role"] = f"{known['role']} {role}"
            return str(known["id"])
        stem = path.rpartition("/")[2].rpartition(".")[0]
        wish = slug(stem, own.strip("-"))
        entry: dict[str, Any] = {"id": wish, "upstream": root.name, "path": path, "symbol": symbol}
        entry |= {"role": role, "expects": list(expects)} if expects else {"role": role}
        try:
            anchor = Anchor.model_validate(entry)
        except ValidationError:
            return ""
        if not root.resolver.resolve(anchor).holds:
            return ""
        entry["id"] = self.draft.identifier(wish)
        self._known[root.name, path, symbol] = entry
        self.draft.anchors.append(entry)
        return str(entry["id"])


def _fits(mention: Mention, item: tuple[str, Definition], words: Sequence[str]) -> bool:
    """Return whether a symbol contains a word. A whole class counts only if it is named."""
    name, found = item
    if found.is_class and not any(word in mention.quote for word in _name_parts(name)):
        return False
    return bool(_inside(found, words, ""))


def _quoted(mention: Mention, place: RootFile) -> _Lines | str:
    """Return the lines that a fence quotes, or why there are none."""
    start, end = cast("tuple[int, int]", (mention.start, mention.end))
    found = place_quote(mention.quote, place.source, start, end)
    if not found.quoted:
        return "it quotes no code"
    if found.status not in ("exact", "moved"):
        return found.why
    return _Lines(place, found.new_start or start, found.new_end or end)


def _meant(mention: Mention, place: RootFile) -> _Lines | None:
    """Return the lines of a file that a ``path:line`` means, or those of the name beside it."""
    start, end = cast("tuple[int, int]", (mention.start, mention.end))
    if mention.quote:
        found = place_name_at(mention.quote[0], place.source, start, end)
        if found.status not in ("exact", "moved"):
            return None
        start, end = found.new_start or start, found.new_end or end
    return _Lines(place, start, end) if 1 <= start <= end <= place.source.total else None


def _enclosing(
    symbols: Mapping[str, Definition], start: int, end: int
) -> list[tuple[str, Definition]]:
    """Return the innermost function or field around the lines, or a class's members there.

    Args:
        symbols: All symbols of a file, from `catalog`.

    Returns:
        Names and definitions, by line; empty if the lines are outside of named symbols.
    """
    around = [item for item in symbols.items() if item[1].start <= start and end <= item[1].end]
    innermost = min(
        around, key=lambda item: (item[1].end - item[1].start, -len(item[0])), default=None
    )
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


def _name_parts(symbol: str) -> list[str]:
    """Return the names of a symbol, outermost first, without their numbers."""
    return [part.partition("#")[0] for part in _SEPARATOR.split(symbol)]


def _scope(name: str, symbols: Mapping[str, Definition]) -> str | None:
    """Return the symbol around a symbol, ``""`` for none, or ``None`` for options."""
    if name.startswith("--"):
        return None
    ends = [match.start() for match in _SEPARATOR.finditer(name)]
    return next((name[:end] for end in reversed(ends) if name[:end] in symbols), "")


def of_code(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the longest literal part of each string, then names, without comments."""
    text = "\n".join(lines)
    strings = [
        "".join(match.group("text", "double", "single")[at] or "" for at in range(3))
        for match in _STRING.finditer(text)
    ]
    literals = [_telling(max(_FIELD.split(string), key=len)) for string in strings]
    names = [name for name in _NAME.findall(_STRING.sub(" ", text)) if name not in _COMMON]
    kept = [literal for literal in literals if len(literal) in _LITERAL_LENGTHS]
    return tuple(dict.fromkeys((*kept, *names)))


def _telling(text: str) -> str:
    """Return the beginning of a literal: its first sentence, or as many words as fit."""
    first = " ".join(text.split()).partition(". ")[0]
    if len(first) <= _LITERAL_LENGTHS[-1]:
        return first
    return first[: _LITERAL_LENGTHS[-1]].rpartition(" ")[0]


def of_prose(text: str, *first: str) -> tuple[str, ...]:
    """Return words that can only be code: ``snake_case``, ``CamelCase``, ``--option``.

    Args:
        first: Words that are returned before them.
    """
    plain = _FILE.sub(" ", text)
    names = [name for name in _NAME.findall(plain) if _TELLING.search(name)]
    last = [name.rsplit(".", 1)[-1] for name in names]
    return tuple(dict.fromkeys((*first, *_OPTION.findall(plain), *names, *last)))


def _inside(symbol: Definition, wanted: Iterable[str], source: str) -> tuple[str, ...]:
    """Return the rarest words that occur inside a symbol, in their order."""
    candidates = [word for word in wanted if len(word.split()) and len(word) <= 200]
    lacking = set(symbol.missing(candidates))
    there = [word for word in candidates if word not in lacking]
    rare = sorted(there, key=lambda word: (source.count(word), -len(word)))[:MAX_EXPECTED]
    return tuple(word for word in there if word in rare)
