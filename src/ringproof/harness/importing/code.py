"""Converts mentions of code in a skill to anchors, if the code is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ringproof.harness.cards.model import Anchor
from ringproof.harness.code.definitions import Definition
from ringproof.harness.code.languages import has_symbols
from ringproof.harness.fences.matching import place_quote
from ringproof.harness.fences.model import Mention
from ringproof.harness.fences.names import place_name_at
from ringproof.harness.importing.draft import CardDraft, slug
from ringproof.harness.importing.enclosing import enclosing, name_parts
from ringproof.harness.importing.roots import RootFile, Roots, SourceRefused
from ringproof.harness.importing.words import inside, of_code, of_prose
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamUnavailable


@dataclass(frozen=True)
class AnchoredMention:
    """Result of converting one mention of code.

    Attributes:
        anchors: Ids of the resulting anchors.
        why: Reason why there are none.
    """

    anchors: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class _Lines:
    """Lines of a file that a mention means, and words that must occur in their symbol."""

    place: RootFile
    start: int
    end: int
    words: tuple[str, ...]


@dataclass
class CodeAnchors:
    """Converts mentions to anchors of a draft, with one anchor for each place in the code."""

    roots: Roots
    draft: CardDraft
    _known: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    _catalogs: dict[tuple[str, str], Mapping[str, Definition]] = field(default_factory=dict)

    def add(self, mention: Mention, said_by: str, prose: str) -> AnchoredMention:
        """Look up one mention.

        Args:
            said_by: Document or list with the mention, for the anchor's role.
            prose: Text around the mention, whose identifiers the code must contain.
        """
        if not self.roots.roots:
            return AnchoredMention(why="no --upstream was given to look it up in")
        try:
            places = self.roots.find(mention.path, anywhere=mention.kind != "fence")
        except SourceRefused as error:
            return AnchoredMention(why=f"the file {error}")
        if not places:
            lacking = self.roots.lacking(mention.path)
            return AnchoredMention(
                why=f"no --upstream {lacking}=SPEC was given" if lacking else "no such file"
            )
        if mention.kind == "fence":
            return self._quoted(mention, places[0], said_by)
        return self._named(mention, places, said_by, prose)

    def _quoted(self, mention: Mention, place: RootFile, said_by: str) -> AnchoredMention:
        start, end = mention.start or 0, mention.end or 0
        found = place_quote(mention.quote, place.source, start, end)
        if not found.quoted:
            return AnchoredMention(why="it quotes no code")
        if found.status not in ("exact", "moved"):
            return AnchoredMention(why=found.why)
        if found.status == "moved":
            start, end = found.new_start or start, found.new_end or end
        lines = _Lines(place, start, end, of_code(mention.quote))
        return self._anchored(mention, lines, said_by)

    def _named(
        self, mention: Mention, places: Sequence[RootFile], said_by: str, prose: str
    ) -> AnchoredMention:
        words = tuple(dict.fromkeys((*mention.quote, *of_prose(prose))))
        if not words:
            return AnchoredMention(why="nothing beside it says what stands there")
        fitting: list[_Lines] = []
        why = "past the end of the file"
        for place in places:
            lines = _meant(mention, place, words)
            if lines is None:
                continue
            why = "nothing that is named beside it occurs there"
            if any(_fits(mention, item, words) for item in self._symbols(lines)):
                fitting.append(lines)
        if len(fitting) != 1:
            several = f"{len(fitting)} files of that name could be meant"
            return AnchoredMention(why=several if fitting else why)
        return self._anchored(mention, fitting[0], said_by)

    def _anchored(self, mention: Mention, lines: _Lines, said_by: str) -> AnchoredMention:
        symbols = self._symbols(lines)
        if not symbols:
            path = lines.place.path
            kind = f"a .{path.rpartition('.')[2]} file has no symbols"
            known = "no symbol encloses it" if has_symbols(path) else kind
            return AnchoredMention(why=f"the text is there, but {known}")
        ids = [self._anchor(mention, lines, name, found, said_by) for name, found in symbols]
        made = tuple(dict.fromkeys(name for name in ids if name))
        return (
            AnchoredMention(made)
            if made
            else AnchoredMention(why="its symbol cannot be named in an anchor")
        )

    def _symbols(self, lines: _Lines) -> list[tuple[str, Definition]]:
        root, path = lines.place.root, lines.place.path
        key = (root.name, path)
        if key not in self._catalogs:
            try:
                known = root.resolver.module(path).catalog() if has_symbols(path) else {}
                self._catalogs[key] = known
            except (ValueError, UpstreamError, UpstreamUnavailable, FileNotFoundError):
                self._catalogs[key] = {}
        return enclosing(self._catalogs[key], lines.start, lines.end)

    def _anchor(
        self, mention: Mention, lines: _Lines, symbol: str, found: Definition, said_by: str
    ) -> str:
        root, path = lines.place.root, lines.place.path
        own = name_parts(symbol)[-1]  # a symbol always contains its own name
        words = [word for word in lines.words if word.rpartition(".")[2] != own]
        expects = inside(found, words, lines.place.source.raw)
        written = f"{mention.path}:{mention.start}"
        if mention.kind == "fence":
            written = f"{mention.start}:{mention.end}:{mention.path}"
        verb = "quotes" if mention.kind == "fence" else "points to"
        role = f"{said_by} {verb} it as {written}."
        known = self._known.get((root.name, path, symbol))
        if known is not None:
            merged = dict.fromkeys((*known.get("expects", ()), *expects))
            if merged:
                known["expects"] = list(merged)
            if role not in known["role"] and len(known["role"]) + len(role) < 2_000:
                known["role"] = f"{known['role']} {role}"
            return str(known["id"])
        stem = path.rpartition("/")[2].rpartition(".")[0]
        wish = slug(stem, name_parts(symbol)[-1].strip("-"))
        entry: dict[str, Any] = {
            "id": wish,
            "upstream": root.name,
            "path": path,
            "symbol": symbol,
            "role": role,
        }
        entry |= {"expects": list(expects)} if expects else {}
        if not self._holds(entry, lines):
            return ""
        entry["id"] = self.draft.identifier(wish)
        self._known[root.name, path, symbol] = entry
        self.draft.anchors.append(entry)
        return str(entry["id"])

    def _holds(self, entry: Mapping[str, Any], lines: _Lines) -> bool:
        """Return whether the anchor is found at these lines."""
        try:
            anchor = Anchor.model_validate(entry)
        except ValidationError:
            return False
        found = lines.place.root.resolver.resolve(anchor)
        return found.holds


def _fits(mention: Mention, item: tuple[str, Definition], words: Sequence[str]) -> bool:
    """Return whether a symbol contains a word. A whole class counts only if it is named."""
    name, found = item
    if found.is_class and not any(word in mention.quote for word in name_parts(name)):
        return False
    return bool(inside(found, words, ""))


def _meant(mention: Mention, place: RootFile, words: Sequence[str]) -> _Lines | None:
    """Return the lines of a file that a ``path:line`` means, or those of the name beside it."""
    start, end = mention.start or 0, mention.end or 0
    if mention.quote:
        found = place_name_at(mention.quote[0], place.source, start, end)
        if found.status == "moved" and found.new_start and found.new_end:
            start, end = found.new_start, found.new_end
        elif found.status != "exact":
            return None
    if not 1 <= start <= end <= place.source.total:
        return None
    return _Lines(place, start, end, tuple(words))
