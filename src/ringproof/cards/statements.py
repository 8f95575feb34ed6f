"""The statements of a card in one form, and checks of their references."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from ringproof.cards.card import Card
from ringproof.cards.document import Location
from ringproof.cards.proof import Proof, ProofKind, parse_proof
from ringproof.errors import shown

_SHOWN = 12


class StatementKind(str, Enum):
    """Part of the card that has the statement."""

    CONSTRAINT = "constraint"
    PITFALL = "pitfall"
    MARKER = "marker"
    COMMAND = "command"
    CLAIM = "claim"
    PROSE = "prose"
    ANCHOR = "anchor"


_LISTS: Mapping[str, tuple[StatementKind, Callable[[Any], str]]] = MappingProxyType(
    {
        "constraints": (StatementKind.CONSTRAINT, lambda item: item.says),
        "pitfalls": (StatementKind.PITFALL, lambda item: item.symptom),
        "markers": (
            StatementKind.MARKER,
            lambda item: item.says or f"{item.where}: {item.pattern}",
        ),
        "commands": (StatementKind.COMMAND, lambda item: item.run),
        "claims": (StatementKind.CLAIM, lambda item: item.says),
    }
)
"""The lists of a card that hold statements, and the text of each statement."""


@dataclass(frozen=True)
class Statement:
    """A statement of a card and its proofs, of which there is at least one.

    Attributes:
        lines: Ids of the lines of upstream that it is about, in the order of the card. A statement
            without any is about ringproof's own code.
    """

    id: str
    kind: StatementKind
    says: str
    proofs: tuple[Proof, ...]
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class CardProblem:
    """A problem of a card: where it is, and a sentence about it."""

    location: Location
    sentence: str


def statements(card: Card) -> tuple[Statement, ...]:
    """Return all statements of a card that need a verdict.

    These are the five lists in the order of the card, then prose under ``known_constraints`` and
    ``known_limitations``, which has no proof, and then the anchors that no statement uses.
    """
    listed = tuple(_listed(card))
    ids = {statement.id for statement in listed}
    used = {proof.target for statement in listed for proof in _anchors(statement.proofs)}
    return (
        *listed,
        *_prose(card, ids),
        *(
            _statement(card, anchor.id, StatementKind.ANCHOR, anchor.role, (f"anchor:{anchor.id}",))
            for anchor in card.anchors
            if anchor.id not in used
        ),
    )


def _listed(card: Card) -> Iterator[Statement]:
    for name, (kind, says) in _LISTS.items():
        for item in getattr(card, name):
            checked_at = getattr(item, "upstream_anchor", None)
            entries = (*item.proof, f"anchor:{checked_at}") if checked_at else item.proof
            yield _statement(card, item.id, kind, says(item), entries, item.lines)


def _statement(
    card: Card,
    name: str,
    kind: StatementKind,
    says: str,
    entries: tuple[str, ...],
    scope: tuple[str, ...] | None = None,
) -> Statement:
    """Return a statement with the lines that it names, or those of its anchors' upstreams."""
    proofs = tuple(dict.fromkeys(map(parse_proof, entries)))
    if scope is None:
        places = {anchor.id: anchor.upstream for anchor in card.anchors}
        named = {places.get(proof.target) for proof in _anchors(proofs)}
        scope = tuple(line.id for line in card.lines if named.intersection(line.upstreams))
    return Statement(name, kind, says, proofs, scope)


def _anchors(proofs: Iterable[Proof]) -> Iterator[Proof]:
    return (proof for proof in proofs if proof.kind is ProofKind.ANCHOR)


def _prose(card: Card, ids: set[str]) -> Iterator[Statement]:
    proof = Proof(ProofKind.UNPROVEN, "prose without a proof")
    for name in ("known_constraints", "known_limitations"):
        for index, text in enumerate(getattr(card, name)):
            if text not in ids:
                yield Statement(f"{name}[{index}]", StatementKind.PROSE, text, (proof,))


def cross_check(card: Card) -> Iterator[CardProblem]:
    """Yield ids that are not unique, references that do not exist, and contradictions of lines."""
    yield from _duplicates(card)
    yield from _line_problems(card)
    for location, name, what, known in _references(card):
        if name not in known:
            choice = ", ".join(list(known)[:_SHOWN]) or "none there"
            sentence = f"{shown(name)} is not {what} of this card; use one of: {choice}"
            yield CardProblem(location, sentence)
    for index, row in enumerate(card.version_matrix):
        for place, name in enumerate(row.anchors):
            if name in row.anchors[:place]:
                location = ("version_matrix", index, "anchors", place)
                yield CardProblem(location, f"{shown(name)} is twice in this row; name it once")


def _references(card: Card) -> Iterator[tuple[Location, str, str, Collection[str]]]:
    """Yield the place of each name in a card, the name, what it names, and the names there are."""
    anchors, lines = [anchor.id for anchor in card.anchors], [line.id for line in card.lines]
    for index, anchor in enumerate(card.anchors):
        yield ("anchors", index, "upstream"), anchor.upstream, "an upstream", card.upstreams
    for index, line in enumerate(card.lines):
        for name in line.upstreams:
            yield ("lines", index, "upstreams"), name, "an upstream", card.upstreams
    for index, constraint in enumerate(card.constraints):
        if constraint.upstream_anchor is not None:
            place = ("constraints", index, "upstream_anchor")
            yield place, constraint.upstream_anchor, "an anchor", anchors
    for part in _LISTS:
        for index, item in enumerate(getattr(card, part)):
            for proof in _anchors(map(parse_proof, item.proof)):
                yield (part, index, "proof"), proof.target, "an anchor", anchors
            for name in item.lines or ():
                yield (part, index, "lines"), name, "a line", lines
    for index, row in enumerate(card.version_matrix):
        for at, name in enumerate(row.anchors):
            yield ("version_matrix", index, "anchors", at), name, "an anchor", anchors
    ids = [*(statement.id for statement in _listed(card)), *anchors]
    for topic, deciding in card.validation_status.items():
        for name in deciding:
            yield ("validation_status", topic), name, "an id", ids


def _line_problems(card: Card) -> Iterator[CardProblem]:
    """Yield contradictions within the lines of upstream."""
    homes: dict[str, str] = {}
    for index, line in enumerate(card.lines):
        at: Location = ("lines", index)
        if not line.trains and line.because is None:
            yield CardProblem((*at, "trains"), "false gives no reason; add `because: WHY`")
        if not line.upstreams and line.unread is None:
            remedy = "name the upstreams on it, or add `unread: WHY`"
            yield CardProblem((*at, "id"), f"{shown(line.id)} has no upstream; {remedy}")
        for name in line.upstreams:
            where, upstream = (*at, "upstreams"), card.upstreams.get(name)
            if upstream is not None and upstream.repo != line.repo:
                problem = f"{shown(name)} is not an upstream of {line.repo}"
                yield CardProblem(where, f"{problem}; move it to a line of its repository")
            elif upstream is not None and name in homes:
                problem = f"{shown(name)} is already on the line {homes[name]}"
                yield CardProblem(where, f"{problem}; name it on one line")
            homes.setdefault(name, line.id)


def _duplicates(card: Card) -> Iterator[CardProblem]:
    first: dict[str, str] = {}
    for name in ("lines", "anchors", *_LISTS):
        for index, item in enumerate(getattr(card, name)):
            if item.id in first:
                problem = f"{shown(item.id)} is already the id of {first[item.id]}"
                yield CardProblem((name, index, "id"), f"{problem}; give each its own id")
            first.setdefault(item.id, f"{name}[{index}]")
