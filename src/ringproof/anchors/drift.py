"""``ringproof anchors drift``: what changed at the anchors between two versions of upstream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from ringproof.anchors.changes import changes, likeness
from ringproof.anchors.resolve import AnchorResolver, Place
from ringproof.anchors.symbols import Definition, SymbolError, UnparsableError
from ringproof.cards.card import Anchor, Card
from ringproof.cards.loading import LocatedCard
from ringproof.cards.proof import ProofKind
from ringproof.cards.statements import statements
from ringproof.findings.finding import Finding, Report, Rule
from ringproof.findings.printable import LONGEST, relative_path, showable
from ringproof.upstream.tree import UpstreamError, UpstreamTree

RENAME_THRESHOLD = 0.6
"""Below this likeness a new name is another symbol."""
RELOCATION_THRESHOLD = 0.4
"""The same name in another file needs less likeness than another name in the same file."""


class DriftKind(str, Enum):
    """What happened to the symbol of an anchor."""

    SAME = "same"
    MOVED = "moved"
    CHANGED = "changed"
    RENAMED = "renamed"
    OTHER_FILE = "moved to another file"
    GONE = "gone"
    UNREADABLE = "unreadable"
    ABSENT = "not in the first version"


HARMLESS = frozenset((DriftKind.SAME, DriftKind.MOVED, DriftKind.ABSENT))
_REREAD = "Read the later version and correct the statements that depend on the anchor."
_REPOINT = "Point the anchor to its new place, and check the statements that depend on it."
_BY_HAND = "Look at it by hand."
_FIT = "Compare only versions the anchor is meant for (`--upstream NAME`), or correct the card."
_EXPECTATION = Rule(
    "RD306",
    "drift-expectation",
    "error",
    "The symbol's code is the same in both versions and lacks what the card expects.",
    _FIT,
)
_UNREADABLE = "The file of the later version cannot be parsed."
RULE_OF: Mapping[DriftKind, Rule] = MappingProxyType(
    {
        kind: Rule(code, f"drift-{name}", "error", what, remedy)
        for kind, code, name, what, remedy in (
            (DriftKind.CHANGED, "RD301", "changed", "The symbol's code changed.", _REREAD),
            (DriftKind.RENAMED, "RD302", "renamed", "The symbol has another name.", _REPOINT),
            (
                DriftKind.OTHER_FILE,
                "RD303",
                "other-file",
                "The symbol is in another file.",
                _REPOINT,
            ),
            (DriftKind.GONE, "RD304", "gone", "Nothing like the symbol is there.", _REREAD),
            (DriftKind.UNREADABLE, "RD305", "unreadable", _UNREADABLE, _BY_HAND),
        )
    }
    | dict.fromkeys(HARMLESS, _EXPECTATION)
)
"""The rule that a change breaks which is not harmless."""
RULES = tuple(dict.fromkeys(RULE_OF.values()))
_UNREADABLE_FILE = (UpstreamError, UnparsableError)


@dataclass(frozen=True)
class Drift:
    """An anchor in two versions of an upstream.

    Attributes:
        path, symbol: Place in the second version; unchanged if the symbol was not found there.
        before, after: First and last line, from 1; ``None`` if it does not exist.
        confidence: Similarity to the old code for a new name or file; 1 for the same code.
        summary: Summary of the changes.
        missing: Expectations that do not occur in the second version.
    """

    anchor: Anchor
    kind: DriftKind
    path: str
    symbol: str | None
    before: tuple[int, int] | None = None
    after: tuple[int, int] | None = None
    confidence: float | None = None
    summary: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def harmless(self) -> bool:
        """Whether the change needs no attention from the card's author."""
        return self.kind in HARMLESS and not self.missing

    def line(self) -> str:
        """Return the kind of the change and the new place on one line."""
        now = f" -> {self.path}:{self.after[0]}-{self.after[1]}" if self.after else ""
        name = f" {self.symbol}" if self.after and self.symbol else ""
        sure = f" ({self.confidence:.0%} alike)" if self.confidence is not None else ""
        return f"{self.kind.value}{now}{name}{sure}"


@dataclass(frozen=True)
class _Candidate:
    """A place of the later version that may be the anchor's, and its likeness to the earlier."""

    path: str
    symbol: str | None
    place: Place
    likeness: float


def compare_cards(
    cards: Mapping[str, LocatedCard], names: Collection[str], old: UpstreamTree, new: UpstreamTree
) -> list[tuple[str, Drift]]:
    """Classify the anchors of cards, by skill; see `classify`.

    Args:
        names: Upstreams whose anchors are compared; empty for all.
    """
    chosen = [
        (skill, anchor)
        for skill, item in cards.items()
        for anchor in item.card.anchors
        if not names or anchor.upstream in names
    ]
    drifts = classify([anchor for _, anchor in chosen], old, new)
    return [(skill, drift) for (skill, _), drift in zip(chosen, drifts, strict=True)]


def classify(anchors: Sequence[Anchor], old: UpstreamTree, new: UpstreamTree) -> tuple[Drift, ...]:
    """Classify what happened to each anchor, in the given order.

    A symbol that is missing is searched under a new name in its file (among names that the file did
    not have before), and under its old name in all other files. A symbol that changed both name and
    file is reported as gone.
    """
    before, after = AnchorResolver(old), AnchorResolver(new)
    drifts: dict[int, Drift] = {}
    lost: dict[int, Place] = {}
    for index, anchor in enumerate(anchors):
        try:
            origin = before.find(anchor)
        except (FileNotFoundError, SymbolError, *_UNREADABLE_FILE):
            drifts[index] = Drift(anchor, DriftKind.ABSENT, anchor.path, anchor.symbol)
            continue
        drift = _in_place(anchor, origin, after)
        if drift is None:
            lost[index] = origin
        else:
            drifts[index] = drift
    symbols = {anchors[index].symbol for index in lost}
    elsewhere = _elsewhere({symbol for symbol in symbols if symbol}, before, after)
    for index, origin in lost.items():
        drifts[index] = _sought(anchors[index], origin, (before, after), elsewhere)
    return tuple(drifts[index] for index in range(len(anchors)))


def _in_place(anchor: Anchor, origin: Place, after: AnchorResolver) -> Drift | None:
    """Classify what still has its name and file; return ``None`` for anything else."""
    try:
        found = after.find(anchor)
    except (FileNotFoundError, SymbolError):
        return None
    except _UNREADABLE_FILE as error:
        kind, summary = DriftKind.UNREADABLE, (str(error),)
        span = _span(origin)
        return Drift(anchor, kind, anchor.path, anchor.symbol, before=span, summary=summary)
    kind = DriftKind.SAME if _span(found) == _span(origin) else DriftKind.MOVED
    if found.fingerprint() != origin.fingerprint():
        kind = DriftKind.CHANGED
    return _drift(anchor, kind, origin, _Candidate(anchor.path, anchor.symbol, found, 1.0))


def _drift(anchor: Anchor, kind: DriftKind, origin: Place, now: _Candidate) -> Drift:
    summary: tuple[str, ...] = ()
    if isinstance(origin, Definition) and isinstance(now.place, Definition):
        if kind is DriftKind.CHANGED or (kind not in HARMLESS and now.likeness < 1):
            summary = changes(origin, now.place)
        if origin.documentation() != now.place.documentation():
            summary = (*summary, "documentation")
    return Drift(
        anchor,
        kind,
        now.path,
        now.symbol,
        before=_span(origin),
        after=_span(now.place),
        confidence=None if kind in (*HARMLESS, DriftKind.CHANGED) else round(now.likeness, 2),
        summary=summary,
        missing=now.place.missing(anchor.expects),
    )


def _span(place: Place) -> tuple[int, int]:
    return place.start, place.end


def _sought(
    anchor: Anchor,
    origin: Place,
    resolvers: tuple[AnchorResolver, AnchorResolver],
    elsewhere: Mapping[str, Sequence[tuple[str, Definition]]],
) -> Drift:
    """Classify what is not in its place by its most similar candidate."""
    gone = Drift(anchor, DriftKind.GONE, anchor.path, anchor.symbol, before=_span(origin))
    if anchor.symbol is None or not isinstance(origin, Definition):
        return gone
    renamed = _best(_new_names(anchor, origin, resolvers), RENAME_THRESHOLD)
    other = _best(
        [
            _Candidate(path, anchor.symbol, found, likeness(origin, found))
            for path, found in elsewhere[anchor.symbol]
        ],
        RELOCATION_THRESHOLD,
    )
    if other is not None and (renamed is None or other.likeness >= renamed.likeness):
        return _drift(anchor, DriftKind.OTHER_FILE, origin, other)
    return gone if renamed is None else _drift(anchor, DriftKind.RENAMED, origin, renamed)


def _best(candidates: Iterable[_Candidate], threshold: float) -> _Candidate | None:
    likely = [candidate for candidate in candidates if candidate.likeness >= threshold]
    return max(likely, key=lambda candidate: candidate.likeness, default=None)


def _new_names(
    anchor: Anchor, origin: Definition, resolvers: tuple[AnchorResolver, AnchorResolver]
) -> list[_Candidate]:
    before, after = resolvers
    try:
        known, now = before.module(anchor.path).catalog(), after.module(anchor.path).catalog()
    except (FileNotFoundError, *_UNREADABLE_FILE):
        return []
    return [
        _Candidate(anchor.path, name, found, likeness(origin, found))
        for name, found in now.items()
        if name not in known
    ]


def _elsewhere(
    symbols: set[str], before: AnchorResolver, after: AnchorResolver
) -> Mapping[str, Sequence[tuple[str, Definition]]]:
    """Find the other files that define symbols in the new version but not in the old one.

    Parsing every file of an upstream takes minutes, so only files that contain the last name of a
    symbol as text are parsed.
    """
    places: dict[str, list[tuple[str, Definition]]] = {symbol: [] for symbol in symbols}
    paths = (path for path in after.tree.paths() if symbols and path.endswith(".py"))
    for path in sorted(paths):
        try:
            data = after.tree.read(path)
        except (FileNotFoundError, UpstreamError):
            continue
        for symbol in symbols:
            if symbol.split(".")[-1].split("#")[0].encode() not in data:
                continue
            found = _defined(after, path, symbol)
            if isinstance(found, Definition) and not _defined(before, path, symbol):
                places[symbol].append((path, found))
    return places


def _defined(resolver: AnchorResolver, path: str, symbol: str) -> Definition | bool:
    """Return the definition of a symbol, or whether the file has several."""
    try:
        return resolver.module(path).find(symbol)
    except SymbolError as error:
        return error.ambiguous
    except (FileNotFoundError, *_UNREADABLE_FILE):
        return False


def drift_report(
    found: Sequence[tuple[str, Drift]], cards: Mapping[str, LocatedCard], *, left_out: int
) -> Report:
    """Report the anchors whose changes need the attention of the card's author.

    Args:
        found: Anchors with their skills.
        left_out: Number of anchors that are not in the earlier version.
    """
    kinds = Counter(drift.kind.value for _, drift in found)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    summary = f"{len(found)} anchors compared: {listed}; {left_out} not in the earlier version"
    findings = (_finding(skill, item, cards[skill]) for skill, item in found if not item.harmless)
    return Report(RULES, tuple(findings), (summary,))


def _finding(skill: str, drift: Drift, card: LocatedCard) -> Finding:
    name = drift.anchor.id
    line, end = card.anchor_lines()[name]
    details = [*drift.summary, *(f"no longer contains {text!r}" for text in drift.missing)]
    details += [
        f"{kind} {name} depends on it" for kind, name in _depending(card.card, drift.anchor)
    ]
    return Finding(
        RULE_OF[drift.kind].id,
        relative_path(card.document.path),
        line,
        showable(f"{name}: {drift.line()}", LONGEST),
        end_line=end,
        details=tuple(showable(text, LONGEST) for text in details),
        identity=f"{skill}/{name}",
    )


def _depending(card: Card, anchor: Anchor) -> Iterator[tuple[str, str]]:
    """Yield kind and id of the statements that name an anchor as proof."""
    for statement in statements(card):
        targets = [p.target for p in statement.proofs if p.kind is ProofKind.ANCHOR]
        if anchor.id in targets and statement.id != anchor.id:
            yield statement.kind.value, statement.id


def drift_data(skill: str, drift: Drift, card: Card) -> dict[str, Any]:
    """Return what became of an anchor for JSON."""
    depending = [{"kind": kind, "id": name} for kind, name in _depending(card, drift.anchor)]
    anchor = drift.anchor
    after = {"path": drift.path, "symbol": drift.symbol, "lines": drift.after}
    return {
        "skill": skill,
        "anchor": anchor.id,
        "upstream": anchor.upstream,
        "kind": drift.kind.value,
        "before": {"path": anchor.path, "symbol": anchor.symbol, "lines": drift.before},
        "after": after if drift.after else None,
        "confidence": drift.confidence,
        "summary": list(drift.summary),
        "missing": list(drift.missing),
        "statements": depending,
    }
