"""``ringproof anchors lock``: the place of each anchor of a skill in each version of its upstream.

The file is sorted JSON with one value per line. It has places, hashes and versions, but no text of
upstream and no path of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ringproof.anchors.resolve import AnchorResolver, Resolution
from ringproof.anchors.symbols import folded
from ringproof.cards.card import Anchor, Card, PackageUpstream, RepositoryUpstream
from ringproof.errors import InputError, shown
from ringproof.files import read_input
from ringproof.upstream.fetching import find_commit
from ringproof.upstream.git import Submodule
from ringproof.upstream.sources import UpstreamChoice, open_tree
from ringproof.upstream.tree import UpstreamError, UpstreamTree

LOCK_FILE = "anchors.lock"
REMEDY = "run `ringproof anchors lock`"
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
        fingerprint: Fingerprint of the code; see `Definition` and `ExpectedLines`.
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
    symbol: str | None = None
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
        raise InputError(str(path), "is a symbolic link; keep the lock itself beside its card")
    if not path.is_file():
        return None
    raw = read_input(path, MAX_BYTES, remedy=remedy)
    try:
        return Lock.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        problem = folded(f"is not a lock file: {where} {first['msg']}")[:200]
        raise InputError(str(path), f"{problem}; {remedy}") from None


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
        sources = _Sources(tree, _release_commit(upstream, tree, choice))
        for anchor in members:
            found = resolver.resolve(anchor)
            is_there = found.start is not None
            places[anchor.id][name] = LockedPlace(
                status="found" if is_there else found.status.value,
                path=found.path,
                source=sources.source(found.path) if is_there else None,
                start=found.start,
                end=found.end,
                fingerprint=found.fingerprint,
                missing=len(found.missing),
            )
            if anchor.upstream == name and not found.holds:
                broken.append(found)
        upstreams[name] = _resolved(name, upstream, tree, sources)
    anchors = {
        anchor.id: LockedAnchor(
            upstream=anchor.upstream,
            path=anchor.path,
            symbol=anchor.symbol,
            places=places[anchor.id],
        )
        for anchor in card.anchors
    }
    return Lock(upstreams=upstreams, anchors=anchors), tuple(broken)


def concerns(card: Card, anchor: Anchor, name: str) -> bool:
    """Return whether an upstream is the anchor's own, or one of the same repository."""
    own, other = card.upstreams[anchor.upstream], card.upstreams[name]
    return anchor.upstream == name or (own.repo is not None and own.repo == other.repo)


def _resolved(
    name: str, upstream: _Upstream, tree: UpstreamTree, sources: _Sources
) -> LockedUpstream:
    commit = getattr(tree, "commit", None)
    if commit is not None:
        at_pin = commit == upstream.commit
        modules = {
            path: LockedSubmodule(repo=module.repo, commit=module.commit)
            for path, module in sources.submodules.items()
        }
        ref = upstream.ref if at_pin else None
        return LockedUpstream(repo=upstream.repo, ref=ref, commit=commit, submodules=modules)
    kind, _, release = tree.origin.partition(":")
    if kind == "dir":
        problem = "is a folder, which is not a version that others can get; give git: or pip:"
        raise InputError("--upstream", f"{shown(name)} {problem}")
    package, _, version = release.partition("#")[0].partition("==")
    return LockedUpstream(
        repo=upstream.repo,
        ref=upstream.ref if sources.commit is not None else None,
        commit=sources.commit,
        package=package,
        version=version,
    )


@dataclass
class _Sources:
    """Finds the file of a commit that has the content of a tree's file.

    Attributes:
        tree: A commit, whose files may be behind links and in submodules, or a release.
        released: For a release, the commit that the card names for it, if the user gave that
            repository.
        commit: For a release, the commit in which its files were found unchanged.
        submodules: Submodules that contain one of the files, by path.
    """

    tree: Any
    released: Any
    commit: str | None = None
    submodules: dict[str, Submodule] = field(default_factory=dict)

    def source(self, path: str) -> str | None:
        """Return the path in the commit if it differs, or if the tree is a release."""
        if self.released is not None:
            return self._unchanged(path)
        if not hasattr(self.tree, "locate"):
            return None
        place = self.tree.locate(path)
        real = str(place.path)
        if place.submodule is not None:
            self.submodules[place.submodule.path] = place.submodule
            real = f"{place.submodule.path}/{real}"
        return real if real != path else None

    def _unchanged(self, path: str) -> str | None:
        """Return the file with the same bytes, because other files have other line numbers."""
        content = self.tree.read(path)
        for layout in ("", "src/"):
            try:
                same = self.released.read(f"{layout}{path}") == content
            except (FileNotFoundError, UpstreamError):
                continue
            if same:
                self.commit = self.released.commit
                return f"{layout}{path}"
        return None


def _release_commit(upstream: _Upstream, tree: UpstreamTree, choice: UpstreamChoice) -> Any:
    """Return the tree of the commit that a card names for a release, if it is here."""
    if isinstance(upstream, RepositoryUpstream) or upstream.repo is None or upstream.commit is None:
        return None
    release = tree.origin.partition(":")[2].partition("#")[0]
    kept = find_commit(choice.cache, upstream.repo, upstream.commit)
    place = choice.submodules.find(upstream.repo) or kept
    if place is None or release != f"{upstream.package}=={upstream.version}":
        return None
    try:
        return open_tree(f"git:{place}@{upstream.commit}", cache=choice.cache, offline=True)
    except InputError:
        return None  # there are no permalinks then; nothing else needs the repository


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
    lines = f"#L{place.start}-L{place.end}"
    return f"https://github.com/{repo}/blob/{commit}/{quote(path)}{lines}"


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


def _difference(upstream: _Upstream, locked: LockedUpstream | None) -> str:
    if locked is None:
        return "not in the lock"
    if isinstance(upstream, RepositoryUpstream):
        then, now = _at(locked), f"commit {upstream.commit[:12]}"
        same = (locked.repo, locked.commit) == (upstream.repo, upstream.commit)
    else:
        now = f"{upstream.package}=={upstream.version}"
        then = f"{locked.package}=={locked.version}" if locked.package else _at(locked)
        same = then == now
        if same and locked.commit is not None and locked.commit != upstream.commit:
            then, now = _at(locked), f"commit {(upstream.commit or 'none')[:12]}"
            same = False
    return "" if same else f"locked at {then}, and the card says {now}"


def _at(locked: LockedUpstream) -> str:
    return f"commit {(locked.commit or 'none')[:12]}"
