"""Which upstream code a user means: parses specs, and opens trees of specs and of cards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import cast

from ringproof.cards.card import Card, PackageUpstream, RepositoryUpstream
from ringproof.errors import InputError, shown
from ringproof.upstream.fetching import FETCHED, fetched_spec, find_commit
from ringproof.upstream.git import GitTree, SubmoduleSources
from ringproof.upstream.releases import Release
from ringproof.upstream.tree import (
    FolderTree,
    InstalledTree,
    UpstreamError,
    UpstreamTree,
    UpstreamUnavailable,
)

FORMS = (
    "git:PATH@REF, fetched:OWNER/NAME@COMMIT, pip:PACKAGE==VERSION, dir:PATH or installed:PACKAGE"
)
RELEASE = re.compile(
    r"(pip:)?(?P<package>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"==(?P<version>[0-9][A-Za-z0-9.!+_-]*)"
)
"""``PACKAGE==VERSION``, with or without ``pip:``."""
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
# A name or an id, with ~ and ^ for ancestors, without git's searches (":/text", "@{date}").
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+#@=-]*([~^][0-9]*)*")


def open_tree(
    spec: str,
    *,
    cache: Path,
    offline: bool,
    submodules: SubmoduleSources | None = None,
    name: str | None = None,
) -> UpstreamTree:
    """Open the files that a spec names.

    Args:
        spec: One of `FORMS`. A git PATH is a bare or normal repository, and REF is a branch, tag,
            remote branch or commit. ``fetched:`` is a commit, or the newest commit of a branch,
            that `ringproof upstream fetch` brought. A release is read from its wheel.
        cache: Folder of downloads.
        offline: Whether to use the cache only.
        submodules, name: Arguments for git; see `GitTree`.

    Raises:
        InputError: The spec has another form, or what it names is not available.
    """
    release = RELEASE.fullmatch(spec)
    kind, _, rest = spec.partition(":") if release is None else ("pip", ":", spec)
    if kind == "fetched":
        match = FETCHED.fullmatch(rest)
        if match is None:
            remedy = "write fetched:OWNER/NAME@COMMIT"
            raise InputError("fetched", f"{shown(spec)} names no commit of a repository; {remedy}")
        name = match["repo"]
        kind, _, rest = fetched_spec(cache, name, match["ref"]).partition(":")
    if kind == "git":
        path, ref = split_git(rest)
        if ref is None:
            raise InputError("git", f"{shown(spec)} names no ref; write git:PATH@REF")
        return GitTree(path, ref, submodules=submodules, name=name)
    if kind == "pip":
        if release is None:
            raise InputError(
                "pip", f"{shown(spec)} names no exact release; write pip:PACKAGE==VERSION"
            )
        try:
            return Release(release["package"], release["version"]).open(cache, offline=offline)
        except (UpstreamUnavailable, UpstreamError) as error:
            remedy = "check the network or fill the cache"
            raise InputError(
                "pip", f"{shown(spec)} cannot be had ({' '.join(str(error).split())}); {remedy}"
            ) from error
    if kind == "dir" and rest:
        return FolderTree(Path(rest))
    if kind == "installed" and _PACKAGE.fullmatch(rest):
        return InstalledTree(rest)
    raise InputError("upstream", f"{shown(spec)} is not an upstream; write {FORMS}")


def split_git(text: str) -> tuple[Path, str | None]:
    """Split ``PATH@REF`` at the first ``@`` that follows an existing folder.

    Returns:
        The path and the ref, which is ``None`` if it is not given.

    Raises:
        InputError: There is no such folder, or the ref is not valid.
    """
    if not text or "\0" in text:
        raise InputError("git", f"{shown(f'git:{text}')} names no repository; write git:PATH@REF")
    places = [match.start() for match in re.finditer("@", text)]
    for place in places:
        path, ref = Path(text[:place]), text[place + 1 :]
        if place and path.is_dir():
            if _REF.fullmatch(ref) is None:
                problem = "is not a branch, tag or commit"
                raise InputError(
                    "git", f"{shown(ref)} {problem}; write it like main, v1.0 or 067f987df"
                )
            return path, ref
    if Path(text).is_dir():
        return Path(text), None
    folder = text[: places[-1]] if places else text
    raise InputError("git", f"{shown(folder)} is not a folder; name a clone or a bare repository")


def given_submodules(specs: Mapping[str, str]) -> SubmoduleSources:
    """Find the repositories among ``NAME=SPEC`` entries that are given without a ref.

    They stand for the submodules of that name, which are read at the commit that is pinned.
    """
    found = {}
    for name, spec in specs.items():
        if spec.startswith("git:") and name.count("/") == 1:
            path, ref = split_git(spec[len("git:") :])
            if ref is None:
                found[name] = path
    return SubmoduleSources(found)


def absolute_spec(spec: str) -> str:
    """Return the spec with absolute paths, for a process in another working directory.

    >>> absolute_spec("pip:torch==2.6.0")
    'pip:torch==2.6.0'
    """
    kind, _, rest = spec.partition(":")
    if kind == "dir" and rest:
        return f"dir:{Path(rest).resolve()}"
    if kind != "git":
        return spec
    path, ref = split_git(rest)
    return f"git:{path.resolve()}" + ("" if ref is None else f"@{ref}")


def parse_overrides(
    entries: Sequence[str],
    *,
    option: str = "--upstream",
    form: str = "NAME=SPEC",
    remedy: str = f"SPEC is {FORMS}",
) -> Mapping[str, str]:
    """Parse ``NAME=SPEC`` entries, each name once."""
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, spec = entry.partition("=")
        if not (name and equals and spec):
            raise InputError(option, f"{shown(entry)} is not {form}; {remedy}")
        if name in found:
            raise InputError(option, f"{shown(name)} is given twice; give each name once")
        found[name] = spec
    return MappingProxyType(found)


@dataclass(frozen=True)
class UpstreamChoice:
    """Opens the upstreams of cards, each once, and raises again what was raised then.

    Attributes:
        overrides: Specs by name. A name is an upstream of a card, or ``OWNER/NAME`` for all commits
            of that repository that cards name or at which submodules are pinned. ``git:PATH``
            without a ref means the commit that the card names.
        cache: Folder of wheels and repositories.
        offline: Use the cache only.
    """

    overrides: Mapping[str, str]
    cache: Path
    offline: bool
    _opened: dict[str, UpstreamTree | Exception] = field(default_factory=dict, repr=False)

    @property
    def submodules(self) -> SubmoduleSources:
        """Git repositories that the user gave by ``OWNER/NAME``."""
        return SubmoduleSources(
            {
                name: split_git(spec.removeprefix("git:"))[0]
                for name, spec in self.overrides.items()
                if "/" in name and spec.startswith("git:")
            }
        )

    def refuse_unknown(self, cards: Iterable[Card]) -> None:
        """Raise `InputError` for a name that neither a card nor a submodule has."""
        named = [pair for card in cards for pair in card.upstreams.items()]
        repositories = [(key, up) for key, up in named if isinstance(up, RepositoryUpstream)]
        known = {name for name, _ in named} | {upstream.repo for _, upstream in repositories}
        unknown = [name for name in self.overrides if name not in known]
        if any("/" in name for name in unknown):
            pinned = {
                item.repo
                for name, upstream in repositories
                if (self.spec(name, upstream) or "").startswith("git:")
                for item in cast("GitTree", self.open(name, upstream)).submodules()
            }
            known |= pinned
            folded = {name.casefold() for name in pinned}
            unknown = [name for name in unknown if name.casefold() not in folded]
        for name in unknown:
            choices = ", ".join(sorted(known)) or "none there"
            problem = "is not an upstream of these cards"
            raise InputError("--upstream", f"{shown(name)} {problem}; choose from: {choices}")

    def spec(self, name: str, upstream: PackageUpstream | RepositoryUpstream) -> str | None:
        """Return the spec that the user gave for an upstream, with its ref, or ``None``."""
        spec = self.overrides.get(name)
        if spec is None and isinstance(upstream, RepositoryUpstream):
            spec = self.overrides.get(str(upstream.repo))
        if spec is None or not spec.startswith("git:"):
            return spec
        path, ref = split_git(spec[len("git:") :])
        if ref is None and upstream.commit is None:
            raise InputError("--upstream", f"{shown(spec)} names no ref; write git:PATH@REF")
        return f"git:{path}@{ref or upstream.commit}"

    def open(self, name: str, upstream: PackageUpstream | RepositoryUpstream) -> UpstreamTree:
        """Open the tree of one upstream.

        Raises:
            UpstreamUnavailable: Nothing was given, and the card's default is not here.
                Repositories are only read from the cache.
            UpstreamError: The wheel has another hash, or is broken.
            InputError: What the user gave cannot be used, or there is no such release.
        """
        spec = self.spec(name, upstream)
        key = upstream.model_dump_json() if spec is None else f"{upstream.repo} {spec}"
        if key not in self._opened:
            try:
                self._opened[key] = self._tree(spec, upstream)
            except (UpstreamError, UpstreamUnavailable) as error:
                self._opened[key] = error
        opened = self._opened[key]
        if isinstance(opened, Exception):
            raise opened
        return opened

    def _tree(
        self, spec: str | None, upstream: PackageUpstream | RepositoryUpstream
    ) -> UpstreamTree:
        cache, offline, submodules = self.cache, self.offline, self.submodules
        if spec is not None:
            return open_tree(
                spec, cache=cache, offline=offline, submodules=submodules, name=upstream.repo
            )
        if isinstance(upstream, PackageUpstream):
            release = Release(upstream.package, upstream.version, upstream.file_sha256)
            return release.open(cache, offline=offline)
        folder = find_commit(cache, upstream.repo, upstream.commit)
        if folder is None:
            needed = f"{upstream.repo} at {upstream.commit[:12]}"
            raise UpstreamUnavailable(f"needs a checkout of {needed}")
        return GitTree(folder, upstream.commit, submodules=submodules, name=upstream.repo)
