"""The upstream versions of a card, and the places of its anchors in each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ringproof.harness.anchors.lock import Lock, LockedPlace, concerns, permalink
from ringproof.harness.cards.model import Anchor, Card, PackageUpstream, RepositoryUpstream

_PULL_REQUEST = re.compile(r"(?:pull-request|pull|pr)/(\d+)(?:/(?:head|merge))?")
_RELEASE = re.compile(r"(?:.*[_/-])?([rv]?\d+(?:\.\d+)+\w*)")
_SHORT_COMMIT = 8
FOUND = "found"


@dataclass(frozen=True)
class Version:
    """A version of a repository, which one or more upstreams of the card name.

    A wheel and the commit from which it was built are one version.

    Attributes:
        label: Name in tables.
        repository: ``OWNER/NAME``, or the upstream's key in the card if it is not known.
        names: Keys under ``upstreams``.
    """

    label: str
    repository: str
    names: tuple[str, ...]


def label(upstream: PackageUpstream | RepositoryUpstream) -> str:
    """Return the name of an upstream in tables: its label, the release, or ref and commit."""
    if upstream.label is not None:
        return upstream.label
    if isinstance(upstream, PackageUpstream):
        return upstream.version
    request = _PULL_REQUEST.fullmatch(upstream.ref)
    if request is not None:
        return f"PR {request[1]}"
    release = _RELEASE.fullmatch(upstream.ref)
    if release is not None:
        return release[1].removeprefix("v")
    return f"{upstream.ref} {upstream.commit[:_SHORT_COMMIT]}"


def product(upstream: PackageUpstream | RepositoryUpstream) -> str:
    """Return the name before the label: the package, or the repository without its owner."""
    if isinstance(upstream, PackageUpstream):
        return upstream.package
    return upstream.repo.partition("/")[2]


def versions(card: Card) -> tuple[Version, ...]:
    """Return the versions of a card in its order, each once."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, upstream in card.upstreams.items():
        state = upstream.commit or f"{name} {label(upstream)}"
        grouped.setdefault((_repository(card, name), state), []).append(name)
    return tuple(
        Version(label(card.upstreams[names[0]]), repository, tuple(names))
        for (repository, _), names in grouped.items()
    )


def _repository(card: Card, name: str) -> str:
    return card.upstreams[name].repo or name


def repository_of(card: Card, anchor: Anchor) -> str:
    """Return the repository in which an anchor is looked up."""
    return _repository(card, anchor.upstream)


def found_place(lock: Lock, anchor: Anchor, version: Version) -> tuple[str, LockedPlace] | None:
    """Return upstream and place of an anchor in a version, preferably with a commit."""
    places = lock.anchors[anchor.id].places
    found = [
        (name, places[name])
        for name in version.names
        if name in places and places[name].status == FOUND
    ]
    linked = [pair for pair in found if permalink(lock.upstreams[pair[0]], pair[1]) is not None]
    return next(iter((*linked, *found)), None)


def staleness(card: Card, lock: Lock) -> str | None:
    """Return why a lock does not match a card, or ``None`` if it does."""
    return next(_differences(card, lock), None)


def _differences(card: Card, lock: Lock) -> Iterator[str]:
    for anchor in card.anchors:
        locked = lock.anchors.get(anchor.id)
        if locked is None:
            yield f"lacks the anchor {anchor.id}"
            continue
        if (locked.path, locked.symbol) != (anchor.path, anchor.symbol):
            yield f"has the anchor {anchor.id} as it was before"
        for name in card.upstreams:
            if concerns(card, anchor, name) and name not in locked.places:
                yield f"lacks the upstream {name}"
    for name, resolved in lock.upstreams.items():
        now = card.upstreams.get(name)
        if now is not None and resolved.commit is not None and resolved.commit != now.commit:
            yield f"has the upstream {name} at another commit"
        if isinstance(now, PackageUpstream) and resolved.version not in (None, now.version):
            yield f"has the upstream {name} at another release"
