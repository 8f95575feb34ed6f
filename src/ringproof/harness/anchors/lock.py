"""``anchors.lock``: the place of each anchor of a skill in each version of its upstream.

The file is sorted JSON with one value per line. It has places, hashes and versions, but no text of
upstream and no path of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ringproof.errors import InputError
from ringproof.files import read_input
from ringproof.harness.anchors.resolve import AnchorResolver, Resolution
from ringproof.harness.anchors.sourcefiles import SourceFinder, source_finder
from ringproof.harness.cards.model import Anchor, Card, PackageUpstream, RepositoryUpstream
from ringproof.harness.upstreams.choice import UpstreamChoice
from ringproof.harness.upstreams.tree import UpstreamTree

LOCK_FILE = "anchors.lock"
MAX_BYTES = 5_000_000

_Upstream = PackageUpstream | RepositoryUpstream


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LockedSubmodule(_Model):
    """Commit at which a submodule is pinned."""

    repo: str
    commit: str


class LockedUpstream(_Model):
    """Resolved upstream: a commit of a repository, or a release.

    Attributes:
        commit: Commit; for a release, only if its files were found unchanged in that commit.
        submodules: Submodules that contain an anchor, by path.
    """

    repo: str | None = None
    ref: str | None = None
    commit: str | None = None
    package: str | None = None
    version: str | None = None
    submodules: Mapping[str, LockedSubmodule] = Field(default_factory=dict)


class LockedPlace(_Model):
    """Place of an anchor in one upstream.

    Attributes:
        status: ``found``, or another `AnchorStatus`.
        path: File in the upstream.
        source: File with the same content in the repository's commit, if it differs from ``path``:
            the target of a link, or the source of a released file.
        start, end: First and last line, from 1.
        fingerprint: Fingerprint of the code; see `contents.fingerprint`.
        missing: Number of expectations that do not occur there.
    """

    status: str
    path: str
    source: str | None = None
    start: int | None = None
    end: int | None = None
    fingerprint: str | None = None
    missing: int = 0


class LockedAnchor(_Model):
    """An anchor as written in the card, and its places by upstream."""

    upstream: str
    path: str
    symbol: str
    places: Mapping[str, LockedPlace]


class Lock(_Model):
    """Content of ``anchors.lock``."""

    version: Literal[1] = 1
    upstreams: Mapping[str, LockedUpstream]
    anchors: Mapping[str, LockedAnchor]

    def text(self) -> str:
        """Return the content of the file, which is the same for equal locks."""
        data = self.model_dump(mode="json", exclude_defaults=True) | {"version": self.version}
        return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def read_lock(path: Path) -> Lock | None:
    """Read a lock file; return ``None`` if it does not exist.

    Raises:
        InputError: The file is not a lock.
    """
    remedy = "write it again with `ringproof anchors lock`"
    if path.is_symlink():
        raise InputError(str(path), None, "is a symbolic link", "keep the lock beside its card")
    if not path.is_file():
        return None
    raw = read_input(path, MAX_BYTES, remedy=remedy)
    try:
        return Lock.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = f"is not a lock file: {where} {first['msg']}".replace("  ", " ")
        raise InputError(str(path), None, " ".join(problem.split())[:200], remedy) from None


def make_lock(card: Card, choice: UpstreamChoice) -> tuple[Lock, tuple[Resolution, ...]]:
    """Look up every anchor in its upstream and in the others of the same repository.

    Returns:
        The lock, and the results of anchors that do not hold in their own upstream.

    Raises:
        UpstreamUnavailable, UpstreamError: An upstream cannot be opened.
    """
    places: dict[str, dict[str, LockedPlace]] = {anchor.id: {} for anchor in card.anchors}
    upstreams: dict[str, LockedUpstream] = {}
    broken: list[Resolution] = []
    for name, upstream in card.upstreams.items():
        members = [anchor for anchor in card.anchors if concerns(card, anchor, name)]
        if not members:
            continue
        tree = choice.open(name, upstream)
        resolver = AnchorResolver(tree)
        finder = source_finder(upstream, tree, choice)
        for anchor in members:
            found = resolver.resolve(anchor)
            source = finder.source(found.path) if found.start is not None else None
            places[anchor.id][name] = _place(found, source)
            if anchor.upstream == name and not found.holds:
                broken.append(found)
        upstreams[name] = _resolved(name, upstream, tree, finder)
    anchors = {anchor.id: _locked(anchor, places[anchor.id]) for anchor in card.anchors}
    return Lock(upstreams=upstreams, anchors=anchors), tuple(broken)


def _locked(anchor: Anchor, places: Mapping[str, LockedPlace]) -> LockedAnchor:
    path, symbol = anchor.path, anchor.symbol
    return LockedAnchor(upstream=anchor.upstream, path=path, symbol=symbol, places=places)


def concerns(card: Card, anchor: Anchor, name: str) -> bool:
    """Return whether an upstream is the anchor's own, or one of the same repository."""
    own, other = card.upstreams[anchor.upstream], card.upstreams[name]
    return anchor.upstream == name or (own.repo is not None and own.repo == other.repo)


def _place(found: Resolution, source: str | None) -> LockedPlace:
    return LockedPlace(
        status="found" if found.start is not None else found.status.value,
        path=found.path,
        source=source,
        start=found.start,
        end=found.end,
        fingerprint=found.fingerprint,
        missing=len(found.missing),
    )


def _resolved(
    name: str, upstream: _Upstream, tree: UpstreamTree, finder: SourceFinder
) -> LockedUpstream:
    commit = getattr(tree, "commit", None)
    if commit is not None:
        at_pin = commit == upstream.commit
        modules = {
            path: LockedSubmodule(repo=module.repo, commit=module.commit)
            for path, module in finder.submodules.items()
        }
        ref = upstream.ref if at_pin else None
        return LockedUpstream(repo=upstream.repo, ref=ref, commit=commit, submodules=modules)
    kind, _, release = tree.origin.partition(":")
    if kind == "dir":
        problem = "a folder is not a version that others can get"
        raise InputError("--upstream", name, problem, "lock against git: or pip:")
    package, _, version = release.partition("#")[0].partition("==")
    return LockedUpstream(
        repo=upstream.repo,
        ref=upstream.ref if finder.commit is not None else None,
        commit=finder.commit,
        package=package,
        version=version,
    )


def permalink(upstream: LockedUpstream, place: LockedPlace) -> str | None:
    """Return the URL of a place, or ``None`` if no commit is known to have these lines.

    A file in a submodule is shown in the submodule's repository.
    """
    path = place.source or (place.path if upstream.package is None else None)
    if upstream.repo is None or upstream.commit is None or place.start is None or path is None:
        return None
    repo, commit = upstream.repo, upstream.commit
    around = [prefix for prefix in upstream.submodules if path.startswith(f"{prefix}/")]
    if around:
        prefix = max(around, key=len)
        module = upstream.submodules[prefix]
        repo, commit, path = module.repo, module.commit, path[len(prefix) + 1 :]
    shown = f"https://github.com/{repo}/blob/{commit}/{quote(path)}"
    return f"{shown}#L{place.start}-L{place.end}"
