"""Looks up the anchors of cards in their upstreams and compares them with the lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ringproof.garbage import no_collection
from ringproof.harness.anchors.lock import Lock, stale_upstreams
from ringproof.harness.anchors.resolve import AnchorResolver, AnchorStatus, Resolution
from ringproof.harness.cards.model import Anchor, Card
from ringproof.harness.upstreams.choice import UpstreamChoice
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamTree, UpstreamUnavailable

NOT_HERE = "not here"
UNUSABLE = "unusable upstream"
CHANGED = "changed since the lock"
NOT_LOCKED = "not locked"
STALE = "locked at another version"


@dataclass(frozen=True)
class CheckedAnchor:
    """Result of looking up one anchor of one skill.

    Attributes:
        resolution: ``None`` when its upstream could not be opened.
        since_lock: ``same``, ``moved`` or ``changed``; ``not locked`` without a lock or a matching
            entry; ``locked at another version`` if the entry is about another version than the
            card's, see `stale_upstreams`; ``None`` if the anchor was not found.
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
        """Whether the result needs attention. A missing upstream is not a failure."""
        return self.status not in (AnchorStatus.HOLDS.value, NOT_HERE)


@no_collection()
def check_cards(
    cards: Mapping[str, Card], locks: Mapping[str, Lock], choice: UpstreamChoice
) -> tuple[CheckedAnchor, ...]:
    """Look up every anchor of the cards in order, and parse each file of each version once.

    Raises:
        InputError: An upstream that the user gave cannot be opened.
    """
    entries = [(skill, anchor) for skill, card in cards.items() for anchor in card.anchors]
    stale = {skill: stale_upstreams(cards[skill], lock) for skill, lock in locks.items()}
    checked: dict[int, CheckedAnchor] = {}
    groups: dict[int, tuple[UpstreamTree, list[int]]] = {}
    for index, (skill, anchor) in enumerate(entries):
        checked[index] = CheckedAnchor(skill, anchor)
        try:
            tree = choice.open(anchor.upstream, cards[skill].upstreams[anchor.upstream])
        except (UpstreamUnavailable, UpstreamError) as error:
            checked[index] = _blocked(checked[index], error)
            continue
        groups.setdefault(id(tree), (tree, []))[1].append(index)
    for tree, members in groups.values():
        resolver = AnchorResolver(tree)  # keep the syntax trees of one version at a time in memory
        for index in members:
            skill, anchor = entries[index]
            try:
                resolution = resolver.resolve(anchor)
            except UpstreamUnavailable as error:  # the repository of a submodule was not given
                checked[index] = _blocked(checked[index], error)
                continue
            since = _since(locks.get(skill), anchor, resolution)
            if since not in (None, NOT_LOCKED) and anchor.upstream in stale[skill]:
                since = STALE
            checked[index] = replace(checked[index], resolution=resolution, since_lock=since)
    return tuple(checked[index] for index in range(len(entries)))


def _blocked(item: CheckedAnchor, error: Exception) -> CheckedAnchor:
    return replace(item, obstacle=str(error), unusable=isinstance(error, UpstreamError))


def _since(lock: Lock | None, anchor: Anchor, now: Resolution) -> str | None:
    if now.start is None:
        return None
    entry = lock.anchors.get(anchor.id) if lock is not None else None
    if entry is None or (entry.path, entry.symbol) != (anchor.path, anchor.symbol):
        return NOT_LOCKED
    place = entry.places.get(anchor.upstream)
    if place is None or place.start is None:
        return NOT_LOCKED
    if place.fingerprint != now.fingerprint:
        return "changed"
    return "same" if (place.start, place.end) == (now.start, now.end) else "moved"


def counts(checked: Sequence[CheckedAnchor]) -> Mapping[str, int]:
    """Count the anchors of each status, the most frequent first."""
    return dict(Counter(item.status for item in checked).most_common())
