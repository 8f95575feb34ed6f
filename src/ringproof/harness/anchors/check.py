"""The anchors of cards, looked up in their upstreams and compared with what was locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringproof.harness.anchors.choice import UpstreamChoice
from ringproof.harness.anchors.lock import Lock, LockedPlace
from ringproof.harness.anchors.resolve import AnchorResolver, AnchorStatus, Resolution
from ringproof.harness.anchors.tree import UpstreamError, UpstreamTree, UpstreamUnavailable
from ringproof.harness.cards.model import Anchor, Card

NOT_HERE = "not here"
UNUSABLE = "unusable upstream"
CHANGED = "changed since the lock"


@dataclass(frozen=True)
class CheckedAnchor:
    """One anchor of one skill.

    Attributes:
        resolution: ``None`` when its upstream could not be opened.
        since_lock: ``same``, ``moved`` or ``changed``; ``not locked`` without a lock or an entry
            that fits; ``None`` when it was not found.
        obstacle: Why the upstream could not be opened.
    """

    skill: str
    anchor: Anchor
    resolution: Resolution | None = None
    since_lock: str | None = None
    obstacle: str = ""
    unusable: bool = False

    @property
    def status(self) -> str:
        """An `AnchorStatus`, `NOT_HERE`, `UNUSABLE` or `CHANGED`."""
        if self.resolution is None:
            return UNUSABLE if self.unusable else NOT_HERE
        if self.resolution.holds and self.since_lock == "changed":
            return CHANGED
        return self.resolution.status.value

    @property
    def failed(self) -> bool:
        """Whether somebody has to look at it. Not being here is no failure."""
        return self.status not in (AnchorStatus.HOLDS.value, NOT_HERE)


def check_cards(
    cards: Mapping[str, Card], locks: Mapping[str, Lock], choice: UpstreamChoice
) -> tuple[CheckedAnchor, ...]:
    """Every anchor of the cards, in their order; each file of each version is parsed once.

    Raises:
        InputError: What the user gave for an upstream cannot be opened.
    """
    entries = [(skill, anchor) for skill, card in cards.items() for anchor in card.anchors]
    checked: dict[int, CheckedAnchor] = {}
    groups: dict[int, tuple[UpstreamTree, list[int]]] = {}
    for index, (skill, anchor) in enumerate(entries):
        try:
            tree = choice.open(anchor.upstream, cards[skill].upstreams[anchor.upstream])
        except (UpstreamUnavailable, UpstreamError) as error:
            unusable = isinstance(error, UpstreamError)
            checked[index] = CheckedAnchor(skill, anchor, obstacle=str(error), unusable=unusable)
            continue
        groups.setdefault(id(tree), (tree, []))[1].append(index)
    for tree, members in groups.values():
        resolver = AnchorResolver(tree)  # one version's syntax trees at a time are in memory
        for index in members:
            skill, anchor = entries[index]
            resolution = resolver.resolve_in_layouts(anchor)
            since = _since(locks.get(skill), anchor, resolution)
            checked[index] = CheckedAnchor(skill, anchor, resolution, since)
    return tuple(checked[index] for index in range(len(entries)))


def _since(lock: Lock | None, anchor: Anchor, now: Resolution) -> str | None:
    if now.start is None:
        return None
    place = _locked(lock, anchor)
    if place is None:
        return "not locked"
    if place.fingerprint != now.fingerprint:
        return "changed"
    return "same" if (place.start, place.end) == (now.start, now.end) else "moved"


def _locked(lock: Lock | None, anchor: Anchor) -> LockedPlace | None:
    """The locked place of an anchor as it is written now, in its own upstream."""
    entry = lock.anchors.get(anchor.id) if lock is not None else None
    if entry is None or (entry.path, entry.symbol) != (anchor.path, anchor.symbol):
        return None
    place = entry.places.get(anchor.upstream)
    return place if place is not None and place.start is not None else None


def counts(checked: Sequence[CheckedAnchor]) -> Mapping[str, int]:
    """How many anchors have each status, the most frequent first."""
    found: dict[str, int] = {}
    for item in checked:
        found[item.status] = found.get(item.status, 0) + 1
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
