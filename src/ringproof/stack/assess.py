"""Says which statements of a card hold in a tree, by its line, its anchors and the evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from ringproof.anchors.lock import Lock
from ringproof.anchors.resolve import AnchorResolver, AnchorStatus, Resolution
from ringproof.cards.card import Card, PackageUpstream, UpstreamLine
from ringproof.cards.proof import ProofKind
from ringproof.cards.statements import Statement, statements
from ringproof.stack.products import Product
from ringproof.stack.recognise import Recognition, recognise
from ringproof.upstream.tree import InstalledTree, UpstreamUnavailable, WheelTree

_RELEASE = re.compile(r"(core_)?[vr]\d|release_")
"""Tags and branches of releases, as cards name them."""
PROVEN = "proven"
"""The verdict of a record that lets a statement hold elsewhere on its line."""


class StatementStatus(str, Enum):
    """What is known of a statement in a tree: its word, and a legend."""

    meaning: str

    HOLDS = "holds", "proven on this line, and the code that it rests on is the same here"
    CHANGED = "changed", "the code is here, but it is not the code that was checked"
    BROKEN = "broken", "a symbol, or a text that must be in it, is not here"
    NOT_CHECKED = "not checked", "nothing proves it on this line, or it names no code to compare"

    def __new__(cls, word: str, meaning: str) -> StatementStatus:
        """Make a member whose value is its word."""
        member = str.__new__(cls, word)
        member._value_, member.meaning = word, meaning
        return member


@dataclass(frozen=True)
class LineStatement:
    """A statement about the line of a tree, and what is known of it there."""

    statement: Statement
    standing: StatementStatus
    reason: str


@dataclass(frozen=True)
class Nearest:
    """The checked commit or release whose anchored code differs least.

    Attributes:
        upstream: Its key in the card.
        differing: Anchors whose code is not the same here.
        compared: Anchors that were compared.
        holding: Anchors of the card that hold in it. Others are about other upstreams.
    """

    upstream: str
    differing: tuple[str, ...]
    compared: int
    holding: frozenset[str]


@dataclass(frozen=True)
class Assessment:
    """A product beside one card.

    Attributes:
        trains_on: Commits and releases of the product that can train, where this one cannot.
    """

    skill: str
    product: Product
    recognition: Recognition
    nearest: Nearest | None
    standpoints: tuple[LineStatement, ...]
    trains_on: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[StatementStatus]:
        """Number of statements by standing."""
        return Counter(point.standing for point in self.standpoints)


def assess(
    skill: str, card: Card, lock: Lock | None, verdicts: Mapping[str, str], product: Product
) -> Assessment:
    """Recognise the line of a product, and judge the statements about that line.

    Args:
        verdicts: Verdicts of the committed records by statement id: the best of all environments.

    Raises:
        InputError: The parser of a file's language is not installed.
    """
    resolver = AnchorResolver(product.tree)
    recognition = recognise(card, product.repo, resolver)
    line = recognition.line
    if line is None:
        return Assessment(skill, product, recognition, None, ())
    found: dict[str, Resolution] = {}
    for anchor in card.anchors:
        if anchor.upstream in line.upstreams:
            with suppress(UpstreamUnavailable):  # in a submodule whose repository was not given
                found[anchor.id] = resolver.resolve(anchor)
    nearest = None if lock is None else _nearest(_alike(card, line, product), lock, found)
    unpacked = frozenset(one.anchor for one in found.values() if _is_not_packed(one, product))
    points = []
    for statement in (one for one in statements(card) if line.id in one.lines):
        standing = StatementStatus.NOT_CHECKED
        why = line.unread or "no checked commit or release is on this line"
        if nearest is not None:
            verdict = verdicts.get(statement.id, "without a record")
            standing, why = _standing(statement, found, nearest, verdict, unpacked)
        points.append(LineStatement(statement, standing, why))
    elsewhere = () if line.trains else tuple(_trained_on(card, product.repo))
    return Assessment(skill, product, recognition, nearest, tuple(points), elsewhere)


def _trained_on(card: Card, repo: str) -> Iterator[str]:
    """Yield the commits and releases of a repository that can train, as people name them."""
    names = (
        name for one in card.lines if one.repo == repo and one.trains for name in one.upstreams
    )
    found = (card.upstreams[name] for name in names)
    yield from dict.fromkeys(
        f"{one.package} {one.version}"
        if isinstance(one, PackageUpstream)
        else f"{one.ref} ({one.commit[:10]})"
        for one in found
    )


def _is_package(product: Product) -> bool:
    return isinstance(product.tree, WheelTree | InstalledTree)


def _alike(card: Card, line: UpstreamLine, product: Product) -> Sequence[str]:
    """Return the upstreams of a line that are of the same kind: releases for a package."""
    if not _is_package(product):
        return line.upstreams
    known = ((name, card.upstreams[name]) for name in line.upstreams)
    releases = [
        name for name, one in known if isinstance(one, PackageUpstream) or _RELEASE.match(one.ref)
    ]
    return releases or line.upstreams


def _is_not_packed(found: Resolution, product: Product) -> bool:
    """Whether a file is missing because packages of the product do not hold its folder.

    A package holds ``megatron/core`` and not what lies at the root of a checkout.
    """
    if found.status is not AnchorStatus.MISSING_FILE or not _is_package(product):
        return False
    folder = "/".join(found.path.split("/")[:-1][:2])
    return not folder or not any(True for _ in product.tree.paths(f"{folder}/"))


def _nearest(names: Sequence[str], lock: Lock, found: Mapping[str, Resolution]) -> Nearest | None:
    """Compare the anchors with the lock's place in each of these upstreams."""
    candidates = []
    for name in names:
        places = {
            anchor: entry.places[name]
            for anchor, entry in lock.anchors.items()
            if name in entry.places and entry.places[name].fingerprint is not None
        }
        compared = [anchor for anchor in found if anchor in places]
        differing = [a for a in compared if found[a].fingerprint != places[a].fingerprint]
        holding = frozenset(anchor for anchor, place in places.items() if not place.missing)
        if compared:
            candidates.append(Nearest(name, tuple(differing), len(compared), holding))
    return min(candidates, key=lambda one: len(one.differing) / one.compared, default=None)


def _standing(
    statement: Statement,
    found: Mapping[str, Resolution],
    nearest: Nearest,
    verdict: str,
    unpacked: frozenset[str],
) -> tuple[StatementStatus, str]:
    """Return what is known of a statement, and why.

    Args:
        unpacked: Anchors whose files are not in packages of the product.
    """
    anchors = [proof.target for proof in statement.proofs if proof.kind is ProofKind.ANCHOR]
    named = [found[anchor] for anchor in anchors if anchor in found]
    own = [resolution for resolution in named if resolution.anchor in nearest.holding]
    if named and not own:
        why = f"its code is not in {nearest.upstream}, the nearest that was checked"
        return StatementStatus.NOT_CHECKED, why
    outside = next((one for one in own if one.anchor in unpacked), None)
    if outside is not None:
        return StatementStatus.NOT_CHECKED, f"{outside.path} is not in the package"
    broken = next((resolution for resolution in own if not resolution.holds), None)
    if broken is not None and broken.status is AnchorStatus.MISSING_EXPECTATION:
        return StatementStatus.BROKEN, broken.detail
    if broken is not None:
        return StatementStatus.BROKEN, f"{broken.place}: {broken.status.value}"
    if verdict != PROVEN:
        return StatementStatus.NOT_CHECKED, f"{verdict} where it was checked"
    differing = next((one for one in own if one.anchor in nearest.differing), None)
    if differing is not None:
        why = f"{differing.place} differs from {nearest.upstream}"
        return StatementStatus.CHANGED, why
    if own or not nearest.differing:
        what = "its anchored code" if own else "all anchored code"
        return StatementStatus.HOLDS, f"{what} is that of {nearest.upstream}"
    why = f"names no code, and {len(nearest.differing)} anchors differ from {nearest.upstream}"
    return StatementStatus.NOT_CHECKED, why
