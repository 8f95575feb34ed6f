"""What became of an anchor between two versions of an upstream."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ringproof.harness.anchors.catalog import catalog
from ringproof.harness.anchors.changes import summarise
from ringproof.harness.anchors.contents import (
    documentation_fingerprint,
    fingerprint,
    missing_expectations,
)
from ringproof.harness.anchors.resolve import AnchorResolver
from ringproof.harness.anchors.similarity import similarity
from ringproof.harness.anchors.symbols import Found, SymbolError, UnparsableError, parse_source
from ringproof.harness.anchors.tree import UpstreamError, UpstreamTree
from ringproof.harness.cards.model import Anchor

RENAME_THRESHOLD = 0.6
"""Below this likeness a new name is another symbol."""
RELOCATION_THRESHOLD = 0.4
"""The same name in another file needs less likeness than another name in the same file."""


class DriftKind(str, Enum):
    """What happened to an anchor's symbol."""

    SAME = "same"
    MOVED = "moved"
    CHANGED = "changed"
    RENAMED = "renamed"
    OTHER_FILE = "moved to another file"
    GONE = "gone"
    UNREADABLE = "unreadable"
    ABSENT = "not in the first version"


HARMLESS = frozenset((DriftKind.SAME, DriftKind.MOVED, DriftKind.ABSENT))


@dataclass(frozen=True)
class Drift:
    """One anchor in two versions.

    Attributes:
        path, symbol: Where it is in the second version; as before when it is nowhere.
        before, after: 1-based lines, first and last; ``None`` where it is not.
        confidence: Likeness to what it was, for a new name or file; 1 for the same code.
        summary: What changed in it, in a few words.
        missing: The anchor's expectations that do not occur in the second version.
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
        """Whether the card's author has nothing to look at."""
        return self.kind in HARMLESS and not self.missing


@dataclass(frozen=True)
class _Candidate:
    path: str
    symbol: str
    found: Found
    confidence: float


def classify(anchors: Sequence[Anchor], old: UpstreamTree, new: UpstreamTree) -> tuple[Drift, ...]:
    """The fate of each anchor, in the given order.

    A symbol that is not where it was is sought under a new name in its file (among the names the
    file did not have before), and under its old name in all other Python files. A symbol that
    changed its name and its file at once is reported as gone.
    """
    before, after = AnchorResolver(old), AnchorResolver(new)
    fates: dict[int, Drift] = {}
    lost: dict[int, Found] = {}
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
    wanted = {anchors[index].symbol for index in lost}
    elsewhere = _elsewhere(wanted, old, new) if wanted else {}
    for index, origin in lost.items():
        fates[index] = _sought(anchors[index], origin, (before, after), elsewhere)
    return tuple(fates[index] for index in range(len(anchors)))


def _in_place(anchor: Anchor, origin: Found, after: AnchorResolver) -> Drift | None:
    """The fate of a symbol that still has its name and file; ``None`` for any other."""
    try:
        found = after.find(anchor.path, anchor.symbol)
    except (FileNotFoundError, SymbolError):
        return None
    except (UpstreamError, UnparsableError) as error:
        kind, summary = DriftKind.UNREADABLE, (str(error),)
        span = (origin.start, origin.end)
        return Drift(anchor, kind, anchor.path, anchor.symbol, before=span, summary=summary)
    kind = DriftKind.SAME if _span(found) == _span(origin) else DriftKind.MOVED
    if fingerprint(found.nodes) != fingerprint(origin.nodes):
        kind = DriftKind.CHANGED
    return _drift(anchor, kind, origin, _Candidate(anchor.path, anchor.symbol, found, 1.0))


def _drift(anchor: Anchor, kind: DriftKind, origin: Found, now: _Candidate) -> Drift:
    summary: tuple[str, ...] = ()
    if kind is DriftKind.CHANGED or (kind not in HARMLESS and now.confidence < 1):
        summary = summarise(origin, now.found)
    if documentation_fingerprint(origin.nodes) != documentation_fingerprint(now.found.nodes):
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
        missing=missing_expectations(now.found.nodes, anchor.expects),
    )


def _span(found: Found) -> tuple[int, int]:
    return found.start, found.end


def _sought(
    anchor: Anchor,
    origin: Found,
    resolvers: tuple[AnchorResolver, AnchorResolver],
    elsewhere: Mapping[str, Sequence[tuple[str, Found]]],
) -> Drift:
    """The fate of a symbol that is not where it was: the likeliest of all candidates."""
    renamed = _best(_new_names(anchor, origin, resolvers), RENAME_THRESHOLD)
    other = _best(
        [
            _Candidate(path, anchor.symbol, found, similarity(origin, found))
            for path, found in elsewhere.get(anchor.symbol, ())
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
    anchor: Anchor, origin: Found, resolvers: tuple[AnchorResolver, AnchorResolver]
) -> list[_Candidate]:
    before, after = resolvers
    try:
        known, now = catalog(before.module(anchor.path)), catalog(after.module(anchor.path))
    except (FileNotFoundError, UpstreamError, UnparsableError):
        return []
    return [
        _Candidate(anchor.path, name, found, similarity(origin, found))
        for name, found in now.items()
        if name not in known
    ]


def _elsewhere(
    symbols: set[str], old: UpstreamTree, new: UpstreamTree
) -> Mapping[str, Sequence[tuple[str, Found]]]:
    """Where else symbols are defined in the new version and were not in the old one.

    Only files that contain a symbol's last name as text are parsed.
    """
    places: dict[str, list[tuple[str, Found]]] = {symbol: [] for symbol in symbols}
    needles = {symbol: symbol.split(".")[-1].split("#")[0].encode() for symbol in symbols}
    for path in sorted(path for path in new.paths() if path.endswith(".py")):
        data = _source(new, path)
        likely = [symbol for symbol, needle in needles.items() if needle in data]
        now = _catalog(data) if likely else {}
        present = [symbol for symbol in likely if symbol in now]
        known = _catalog(_source(old, path)) if present else {}
        for symbol in present:
            if symbol not in known:
                places[symbol].append((path, now[symbol]))
    return places


def _source(tree: UpstreamTree, path: str) -> bytes:
    try:
        return tree.read(path)
    except (FileNotFoundError, UpstreamError):
        return b""


def _catalog(source: bytes) -> Mapping[str, Found]:
    try:
        return catalog(parse_source(source))
    except UnparsableError:
        return catalog(ast.Module([], []))
