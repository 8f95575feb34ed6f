"""The versions of upstream that a card names, and where its lock found each anchor in them.

A wheel and the commit from which it was built are one version of a repository.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ringproof.anchors.lock import Lock, LockedPlace, LockedUpstream, concerns, permalink
from ringproof.cards.card import (
    Anchor,
    Card,
    PackageUpstream,
    RepositoryUpstream,
    UpstreamLine,
)

_PULL_REQUEST = re.compile(r"(?:pull-request|pull|pr)/(\d+)(?:/(?:head|merge))?")
_RELEASE = re.compile(r"(?:.*[_/-])?([rv]?\d+(?:\.\d+)+\w*)")
_SHORT_COMMIT = 8


@dataclass(frozen=True)
class Version:
    """A version of a repository, which one or more upstreams of the card name.

    Attributes:
        repository: ``OWNER/NAME``, or the upstream's key in the card if it is not known.
    """

    label: str
    repository: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class VersionMatrix:
    """Names by version of one repository.

    Attributes:
        rows: Topic, and for each version the symbols that exist in it; a symbol is false if not all
            that its anchor expects is there.
    """

    repository: str
    versions: tuple[Version, ...]
    rows: tuple[tuple[str, tuple[Mapping[str, bool], ...]], ...]


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


def home(card: Card, anchor: Anchor) -> str:
    """Return package or repository, and version, of an anchor's own upstream."""
    upstream = card.upstreams[anchor.upstream]
    if isinstance(upstream, PackageUpstream):
        return f"{upstream.package} {label(upstream)}"
    return f"{upstream.repo.partition('/')[2]} {label(upstream)}"


def can_train(line: UpstreamLine) -> str:
    """Return whether the feature can train on a line of upstream, and why not."""
    return "yes" if line.trains else f"no: {line.because}"


def checked(card: Card, line: UpstreamLine) -> str:
    """Return the versions of a line that were checked, or why there are none."""
    names = dict.fromkeys(label(card.upstreams[name]) for name in line.upstreams)
    return ", ".join(names) if names else f"not checked: {line.unread}"


def versions(card: Card, at: Collection[str] = ()) -> tuple[Version, ...]:
    """Return the versions of a card in its order, each once.

    Args:
        at: Upstreams whose versions are wanted; all if empty.
    """
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, upstream in card.upstreams.items():
        state = upstream.commit or f"{name} {label(upstream)}"
        grouped.setdefault((_repository(card, name), state), []).append(name)
    return tuple(
        Version(label(card.upstreams[names[0]]), repository, tuple(names))
        for (repository, _), names in grouped.items()
        if not at or not set(at).isdisjoint(names)
    )


def _repository(card: Card, name: str) -> str:
    return card.upstreams[name].repo or name


def found_places(
    card: Card, lock: Lock, anchor: Anchor, at: Collection[str] = ()
) -> Iterator[tuple[Version, LockedUpstream, LockedPlace]]:
    """Yield the place of an anchor in each version that has it, preferably one with a permalink."""
    places = lock.anchors[anchor.id].places
    for version in versions(card, at):
        if version.repository == _repository(card, anchor.upstream):
            found = [
                (lock.upstreams[name], places[name])
                for name in version.names
                if name in places and places[name].status == "found"
            ]
            linked = [pair for pair in found if permalink(*pair) is not None]
            yield from ((version, *pair) for pair in (*linked, *found)[:1])


def matrices(
    card: Card, lock: Lock, *, only: Collection[str] | None = None, at: Collection[str] = ()
) -> Iterator[VersionMatrix]:
    """Yield the version matrix of a card, a table for each repository.

    Args:
        only: Ids of the anchors whose names are wanted; all by default.
        at: See `versions`.
    """
    known = {anchor.id: anchor for anchor in card.anchors}
    for repository in dict.fromkeys(version.repository for version in versions(card)):
        columns = tuple(item for item in versions(card, at) if item.repository == repository)
        rows = []
        for row in card.version_matrix:
            wanted = (known[name] for name in row.anchors if only is None or name in only)
            here = [item for item in wanted if _repository(card, item.upstream) == repository]
            if here:
                cells = tuple(_names(card, lock, here, version) for version in columns)
                rows.append((row.about, cells))
        if rows:
            yield VersionMatrix(repository, columns, tuple(rows))


def _names(
    card: Card, lock: Lock, anchors: Collection[Anchor], version: Version
) -> Mapping[str, bool]:
    names: dict[str, bool] = {}
    for anchor in anchors:
        for _, _, place in found_places(card, lock, anchor, version.names):
            name = anchor.symbol or anchor.path
            names[name] = names.get(name, False) or place.missing == 0
    return names


def lock_differences(card: Card, lock: Lock) -> Iterator[str]:
    """Yield why a lock does not match a card."""
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
