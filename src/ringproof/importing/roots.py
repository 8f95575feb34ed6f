"""The code to which an imported skill refers, as trees that become upstreams."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ringproof.anchors.resolve import AnchorResolver
from ringproof.code.files import SourceLines, TreeFiles
from ringproof.errors import InputError
from ringproof.upstream.git import repository_of, submodule_urls
from ringproof.upstream.sources import open_tree, split_git
from ringproof.upstream.tree import UpstreamError, UpstreamTree, UpstreamUnavailable

OPTION = "--upstream"
MAX_NAMESAKES = 60
"""Largest number of files with one name to search. With more, the mention is too ambiguous."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
_RELEASE = re.compile(r"(?:pip|installed):([^=#]+)==([^#]+)")


@dataclass(frozen=True)
class Root:
    """A tree of code.

    Attributes:
        name: Key under ``upstreams``.
        upstream: Entry under this key.
        submodules: ``OWNER/NAME`` of each submodule by path.
    """

    name: str
    upstream: Mapping[str, str]
    files: TreeFiles
    resolver: AnchorResolver
    submodules: Mapping[str, str]

    @property
    def repository(self) -> str:
        """``owner/name`` in lower case; empty for packages."""
        return self.upstream.get("repo", "").lower()


@dataclass(frozen=True)
class RootFile:
    """A file of a root."""

    root: Root
    path: str
    source: SourceLines


def open_roots(specs: Mapping[str, str], *, cache: Path, offline: bool) -> Roots:
    """Open the roots that the user gave.

    Args:
        specs: Specs by name. The name of a ``git:`` spec is ``OWNER/NAME``, which becomes the
            upstream's ``repo``. Other names become the name of the upstream.

    Raises:
        InputError: A spec cannot be opened, names no exact version, or its name does not fit.
    """
    roots: list[Root] = []
    for name, spec in specs.items():
        if spec.startswith("git:") and _REPOSITORY.fullmatch(name) is None:
            raise InputError(OPTION, name, "is not OWNER/NAME", "name a git root OWNER/NAME")
        tree = open_tree(spec, cache=cache, offline=offline)
        upstream = _upstream(name, spec, tree)
        taken = {root.name for root in roots}
        key = name.rpartition("/")[2].lower() if "/" in name else name
        key = key if key not in taken else name.replace("/", "-").lower()
        if key in taken or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", key) is None:
            raise InputError(OPTION, name, "cannot be an upstream's name", "name it otherwise")
        files, submodules = TreeFiles(tree), _submodules(name, tree)
        roots.append(Root(key, upstream, files, AnchorResolver(tree), submodules))
    return Roots(tuple(roots))


def _upstream(name: str, spec: str, tree: UpstreamTree) -> Mapping[str, str]:
    commit = getattr(tree, "commit", None)
    if spec.startswith("git:") and commit is not None:
        _, ref = split_git(spec.removeprefix("git:"))
        return MappingProxyType({"repo": name, "ref": ref or commit, "commit": commit})
    release = _RELEASE.match(tree.origin)
    if release is None:
        problem = "names no exact version that a card could write down"
        raise InputError(OPTION, spec, problem, "use git:PATH@REF or pip:PACKAGE==VERSION")
    return MappingProxyType({"package": release[1], "version": release[2]})


def _submodules(name: str, tree: UpstreamTree) -> Mapping[str, str]:
    try:
        text = tree.read(".gitmodules").decode("utf-8", "replace")
    except (FileNotFoundError, UpstreamError, UpstreamUnavailable):
        return MappingProxyType({})
    named = {path: repository_of(url, name) for path, url in submodule_urls(text).items()}
    return MappingProxyType({path: repo for path, repo in named.items() if repo is not None})


@dataclass(frozen=True)
class Roots:
    """All trees in the user's order."""

    roots: tuple[Root, ...] = ()

    def find(self, path: str, *, anywhere: bool) -> tuple[RootFile, ...]:
        """Find the files that a path in a skill can mean.

        A path is tried below every root, without a leading ``src/``, and through submodules into
        the root of that repository.

        Args:
            anywhere: Whether the path may be the end of a longer path (``config.py``), which may
                match several files.

        Raises:
            SourceRefused: A file is binary or too large.
        """
        plain = path.removeprefix("./")
        if plain.startswith(("/", "../")):
            return ()
        for root, inner in self._exact(plain):
            if (place := _place(root, inner)) is not None:
                return (place,)
        if not anywhere:
            return ()
        ending = [(root, name) for root in self.roots for name in root.files.ending_with(plain)]
        if len(ending) > MAX_NAMESAKES:
            return ()
        found = (_place(root, name) for root, name in ending)
        return tuple(place for place in found if place is not None)

    def holds(self, path: str) -> Root | None:
        """Return the root that has a file or a folder of that path, without reading it."""
        plain = path.removeprefix("./").rstrip("/")
        for root, inner in self._exact(plain):
            listed = root.files.tree.paths(inner)
            if any(name == inner or name.startswith(f"{inner}/") for name in listed):
                return root
        return None

    def lacking(self, path: str) -> str:
        """Return the repository of the submodule that contains a path, if it has no root."""
        given = {root.repository for root in self.roots}
        for root in self.roots:
            for prefix, repository in root.submodules.items():
                if path.startswith(f"{prefix}/") and repository.lower() not in given:
                    return repository
        return ""

    def _exact(self, path: str) -> Iterator[tuple[Root, str]]:
        for root in self.roots:
            yield root, path
            if path.startswith("src/"):
                yield root, path.removeprefix("src/")
            for prefix, repository in root.submodules.items():
                same = [other for other in self.roots if other.repository == repository.lower()]
                if path.startswith(f"{prefix}/"):
                    yield from ((other, path[len(prefix) + 1 :]) for other in same)


def _place(root: Root, path: str) -> RootFile | None:
    try:
        source = root.files.lines(path)
    except (UpstreamError, UpstreamUnavailable):
        return None
    return None if source is None else RootFile(root, path, source)
