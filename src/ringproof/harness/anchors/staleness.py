"""Checks whether a lock was made for the versions that its card names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringproof.harness.anchors.lock import Lock, LockedUpstream, concerns
from ringproof.harness.cards.model import Card, PackageUpstream, RepositoryUpstream

REMEDY = "run `ringproof anchors lock`"


def stale_upstreams(card: Card, lock: Lock) -> Mapping[str, str]:
    """Describe, by upstream, how the lock differs from the card.

    Upstreams that are equal are left out. Only the files are compared, so no upstream is needed.
    """
    found = {}
    for name, upstream in card.upstreams.items():
        if any(concerns(card, anchor, name) for anchor in card.anchors):
            problem = _difference(upstream, lock.upstreams.get(name))
            if problem:
                found[name] = f"{name} is {problem}: {REMEDY}"
    return MappingProxyType(found)


def leftovers(card: Card, lock: Lock) -> tuple[str, ...]:
    """List what is in the lock but not in the card, as ``anchor ID`` or ``upstream NAME``."""
    anchors = {anchor.id for anchor in card.anchors}
    gone = [f"anchor {name}" for name in lock.anchors if name not in anchors]
    gone += [f"upstream {name}" for name in lock.upstreams if name not in card.upstreams]
    return tuple(sorted(gone))


def _difference(
    upstream: PackageUpstream | RepositoryUpstream, locked: LockedUpstream | None
) -> str:
    if locked is None:
        return "not in the lock"
    if isinstance(upstream, RepositoryUpstream):
        then, now = _commit(locked), f"commit {upstream.commit[:12]}"
        same = (locked.repo, locked.commit) == (upstream.repo, upstream.commit)
    else:
        now = f"{upstream.package}=={upstream.version}"
        then = f"{locked.package}=={locked.version}" if locked.package else _commit(locked)
        same = then == now
        if same and locked.commit is not None and locked.commit != upstream.commit:
            then, now = _commit(locked), f"commit {(upstream.commit or 'none')[:12]}"
            same = False
    return "" if same else f"locked at {then}, and the card says {now}"


def _commit(locked: LockedUpstream) -> str:
    return f"commit {(locked.commit or 'none')[:12]}"
