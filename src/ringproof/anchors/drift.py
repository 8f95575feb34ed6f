"""Classifies what happened to anchors between two versions of an upstream, and reports it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from ringproof.anchors.resolve import AnchorResolver
from ringproof.cards.loading import LocatedCard
from ringproof.cards.model import Anchor, Card
from ringproof.cards.proof import ProofKind
from ringproof.cards.statements import statements
from ringproof.code.definitions import Definition, SymbolError, UnparsableError
from ringproof.code.languages import has_symbols, is_native, last_name
from ringproof.findings.model import Finding, Report, Rule
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
_REREAD = "Read the later version and correct what hangs on the anchor."
_REPOINT = "Point the anchor to its new place, and read what hangs on it again."
_EXPECTATION = Rule(
    "RD306",
    "drift-expectation",
    "error",
    "The symbol's code is the same in both versions and lacks what the card expects.",
    "Compare only versions the anchor is meant for (`--upstream NAME`), or correct the card.",
)
RULE_OF: Mapping[DriftKind, Rule] = MappingProxyType(
    {
        DriftKind.CHANGED: Rule(
            "RD301", "drift-changed", "error", "The symbol's code changed.", _REREAD
        ),
        DriftKind.RENAMED: Rule(
            "RD302", "drift-renamed", "error", "The symbol has another name.", _REPOINT
        ),
        DriftKind.OTHER_FILE: Rule(
            "RD303", "drift-other-file", "error", "The symbol is in another file.", _REPOINT
        ),
        DriftKind.GONE: Rule(
            "RD304", "drift-gone", "error", "Nothing like the symbol is there.", _REREAD
        ),
        DriftKind.UNREADABLE: Rule(
            "RD305",
            "drift-unreadable",
            "error",
            "The file of the later version cannot be parsed.",
            "Look at it by hand.",
        ),
        **dict.fromkeys(HARMLESS, _EXPECTATION),
    }
)
"""The rule that a change breaks which is not harmless."""
RULES = tuple(dict.fromkeys(RULE_OF.values()))


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
    symbol: str
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
        now = f" -> {self.path}:{self.after[0]}-{self.after[1]} {self.symbol}" if self.after else ""
        sure = f" ({self.confidence:.0%} alike)" if self.confidence is not None else ""
        return f"{self.kind.value}{now}{sure}"


@dataclass(frozen=True)
class _Candidate:
    path: str
    symbol: str
    found: Definition
    confidence: float


_Wanted = tuple[bool, str]
"""Whether a symbol is native, and the symbol."""


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
    fates = classify([anchor for _, anchor in chosen], old, new)
    return [(skill, fate) for (skill, _), fate in zip(chosen, fates, strict=True)]


def classify(anchors: Sequence[Anchor], old: UpstreamTree, new: UpstreamTree) -> tuple[Drift, ...]:
    """Classify what happened to each anchor, in the given order.

    A symbol that is missing is searched under a new name in its file (among names that the file did
    not have before), and under its old name in all other files of its language. A symbol that
    changed both name and file is reported as gone.

    Raises:
        InputError: The parser of an anchor's language is not installed.
    """
    before, after = AnchorResolver(old), AnchorResolver(new)
    fates: dict[int, Drift] = {}
    lost: dict[int, Definition] = {}
    for index, anchor in enumerate(anchors):
        try:
            origin = before.find(anchor.path, anchor.symbol)
        except (FileNotFoundError, UpstreamError, UnparsableError, SymbolError):
            fates[index] = Drift(anchor, DriftKind.ABSENT, anchor.path, anchor.symbol)
            continue
        fate = _in_place(anchor, origin, after)
        if fate is None:
            lost[index] = origin
        else:
            fates[index] = fate
    wanted = {_wanted(anchors[index]) for index in lost}
    elsewhere = _elsewhere(wanted, before, after) if wanted else {}
    for index, origin in lost.items():
        fates[index] = _sought(anchors[index], origin, (before, after), elsewhere)
    return tuple(fates[index] for index in range(len(anchors)))


def _in_place(anchor: Anchor, origin: Definition, after: AnchorResolver) -> Drift | None:
    """Classify a symbol that still has its name and file; return ``None`` for any other."""
    try:
        found = after.find(anchor.path, anchor.symbol)
    except (FileNotFoundError, SymbolError):
        return None
    except (UpstreamError, UnparsableError) as error:
        kind, summary = DriftKind.UNREADABLE, (str(error),)
        span = (origin.start, origin.end)
        return Drift(anchor, kind, anchor.path, anchor.symbol, before=span, summary=summary)
    kind = DriftKind.SAME if _span(found) == _span(origin) else DriftKind.MOVED
    if found.fingerprint() != origin.fingerprint():
        kind = DriftKind.CHANGED
    return _drift(anchor, kind, origin, _Candidate(anchor.path, anchor.symbol, found, 1.0))


def _drift(anchor: Anchor, kind: DriftKind, origin: Definition, now: _Candidate) -> Drift:
    summary: tuple[str, ...] = ()
    if kind is DriftKind.CHANGED or (kind not in HARMLESS and now.confidence < 1):
        summary = origin.changes(now.found)
    if origin.documentation() != now.found.documentation():
        summary = (*summary, "documentation")
    return Drift(
        anchor,
        kind,
        now.path,
        now.symbol,
        before=_span(origin),
        after=_span(now.found),
        confidence=None if kind in (*HARMLESS, DriftKind.CHANGED) else round(now.confidence, 2),
        summary=summary,
        missing=now.found.missing(anchor.expects),
    )


def _span(found: Definition) -> tuple[int, int]:
    return found.start, found.end


def _sought(
    anchor: Anchor,
    origin: Definition,
    resolvers: tuple[AnchorResolver, AnchorResolver],
    elsewhere: Mapping[_Wanted, Sequence[tuple[str, Definition]]],
) -> Drift:
    """Classify a missing symbol by its most similar candidate."""
    renamed = _best(_new_names(anchor, origin, resolvers), RENAME_THRESHOLD)
    other = _best(
        [
            _Candidate(path, anchor.symbol, found, origin.likeness(found))
            for path, found in elsewhere.get(_wanted(anchor), ())
        ],
        RELOCATION_THRESHOLD,
    )
    if other is not None and (renamed is None or other.confidence >= renamed.confidence):
        return _drift(anchor, DriftKind.OTHER_FILE, origin, other)
    if renamed is not None:
        return _drift(anchor, DriftKind.RENAMED, origin, renamed)
    return Drift(anchor, DriftKind.GONE, anchor.path, anchor.symbol, before=_span(origin))


def _best(candidates: Iterable[_Candidate], threshold: float) -> _Candidate | None:
    likely = [candidate for candidate in candidates if candidate.confidence >= threshold]
    return max(likely, key=lambda candidate: candidate.confidence, default=None)


def _new_names(
    anchor: Anchor, origin: Definition, resolvers: tuple[AnchorResolver, AnchorResolver]
) -> list[_Candidate]:
    before, after = resolvers
    try:
        known, now = before.module(anchor.path).catalog(), after.module(anchor.path).catalog()
    except (FileNotFoundError, UpstreamError, UnparsableError):
        return []
    return [
        _Candidate(anchor.path, name, found, origin.likeness(found))
        for name, found in now.items()
        if name not in known
    ]


def _wanted(anchor: Anchor) -> _Wanted:
    return is_native(anchor.path), anchor.symbol


def _elsewhere(
    wanted: set[_Wanted], before: AnchorResolver, after: AnchorResolver
) -> Mapping[_Wanted, Sequence[tuple[str, Definition]]]:
    """Find the other files that define symbols in the new version but not in the old one.

    Only files of the symbol's language that contain its last name as text are parsed.
    """
    places: dict[_Wanted, list[tuple[str, Definition]]] = {item: [] for item in wanted}
    for path in sorted(filter(has_symbols, after.tree.paths())):
        try:
            data = after.tree.read(path)
        except (FileNotFoundError, UpstreamError):
            continue
        for native, symbol in wanted:
            if native != is_native(path) or last_name(path, symbol).encode() not in data:
                continue
            found = _defined(after, path, symbol)
            if isinstance(found, Definition) and not _defined(before, path, symbol):
                places[native, symbol].append((path, found))
    return places


def _defined(resolver: AnchorResolver, path: str, symbol: str) -> Definition | bool:
    """Return the definition of a symbol, or whether the file has several."""
    try:
        return resolver.find(path, symbol)
    except SymbolError as error:
        return error.ambiguous
    except (FileNotFoundError, UpstreamError, UnparsableError):
        return False


def drift_report(
    found: Sequence[tuple[str, Drift]], cards: Mapping[str, LocatedCard], *, left_out: int
) -> Report:
    """Report the anchors whose changes need the attention of the card's author.

    Args:
        found: Anchors with their skills.
        left_out: Number of anchors that are not in the earlier version.
    """
    kinds = Counter(fate.kind.value for _, fate in found)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    summary = f"{len(found)} anchors compared: {listed}; {left_out} not in the earlier version"
    findings = (_finding(skill, fate, cards[skill]) for skill, fate in found if not fate.harmless)
    return Report(RULES, tuple(findings), (summary,))


def _finding(skill: str, fate: Drift, card: LocatedCard) -> Finding:
    name = fate.anchor.id
    line, end = card.anchor_lines()[name]
    details = [*fate.summary, *(f"no longer contains {text!r}" for text in fate.missing)]
    details += [f"{kind} {name} hangs on it" for kind, name in _hanging(card.card, fate.anchor)]
    return Finding(
        RULE_OF[fate.kind].id,
        relative_path(card.document.path),
        line,
        showable(f"{name}: {fate.line()}", LONGEST),
        end_line=end,
        details=tuple(showable(text, LONGEST) for text in details),
        identity=f"{skill}/{name}",
    )


def _hanging(card: Card, anchor: Anchor) -> Iterator[tuple[str, str]]:
    """Yield kind and id of the statements that name an anchor as proof."""
    for statement in statements(card):
        targets = [p.target for p in statement.proofs if p.kind is ProofKind.ANCHOR]
        if anchor.id in targets and statement.id != anchor.id:
            yield statement.kind.value, statement.id


def drift_data(skill: str, fate: Drift, card: Card) -> dict[str, Any]:
    """Return what became of an anchor for JSON."""
    hanging = [{"kind": kind, "id": name} for kind, name in _hanging(card, fate.anchor)]
    anchor = fate.anchor
    return {
        "skill": skill,
        "anchor": anchor.id,
        "upstream": anchor.upstream,
        "kind": fate.kind.value,
        "before": {"path": anchor.path, "symbol": anchor.symbol, "lines": fate.before},
        "after": fate.after and {"path": fate.path, "symbol": fate.symbol, "lines": fate.after},
        "confidence": fate.confidence,
        "summary": list(fate.summary),
        "missing": list(fate.missing),
        "statements": hanging,
    }
