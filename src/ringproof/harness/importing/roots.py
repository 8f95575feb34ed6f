"""The code to which an imported skill refers, as trees that become upstreams."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ringproof.errors import InputError
from ringproof.harness.anchors.resolve import AnchorResolver
from ringproof.harness.fences.source import SourceLines, SourceRefused, read_source
from ringproof.harness.upstreams.specs import open_tree, split_git
from ringproof.harness.upstreams.submodules import repository_of, submodule_urls
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamTree, UpstreamUnavailable

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
    tree: UpstreamTree
    resolver: AnchorResolver
    submodules: Mapping[str, str]

    @property
    def repository(self) -> str:
        """``OWNER/NAME``; empty for packages."""
        return self.upstream.get("repo", "")


@dataclass(frozen=True)
class RootFile:
    """A file of a root."""

    root: Root
    source: SourceLines

    @property
    def path(self) -> str:
        """Path from the root."""
        return self.source.path


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
        roots.append(Root(key, upstream, tree, AnchorResolver(tree), _submodules(name, tree)))
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
    """All trees in the user's order. Each file is read once."""

    roots: tuple[Root, ...] = ()
    _read: dict[tuple[str, str], SourceLines | None] = field(default_factory=dict, repr=False)
    _names: dict[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict, repr=False)

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
        found = [self._place(root, inner) for root, inner in self._exact(plain)]
        places = tuple(place for place in found if place is not None)
        if places or not anywhere:
            return places[:1]
        ending = [(root, name) for root in self.roots for name in self._ending(root, plain)]
        if len(ending) > MAX_NAMESAKES:
            return ()
        found = [self._place(root, name) for root, name in ending]
        return tuple(place for place in found if place is not None)

    def holds(self, path: str) -> Root | None:
        """Return the root that has a file or a folder of that path, without reading it."""
        plain = path.removeprefix("./").rstrip("/")
        for root, inner in self._exact(plain):
            listed = root.tree.paths(inner)
            if any(name == inner or name.startswith(f"{inner}/") for name in listed):
                return root
        return None

    def lacking(self, path: str) -> str:
        """Return the repository of the submodule that contains a path, if it has no root."""
        given = {root.repository.lower() for root in self.roots}
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
                same = [other for other in self.roots if _same(other.repository, repository)]
                if path.startswith(f"{prefix}/"):
                    yield from ((other, path[len(prefix) + 1 :]) for other in same)

    def _ending(self, root: Root, path: str) -> tuple[str, ...]:
        if root.name not in self._names:
            names: dict[str, tuple[str, ...]] = {}
            for name in sorted(root.tree.paths()):
                base = posixpath.basename(name)
                names[base] = (*names.get(base, ()), name)
            self._names[root.name] = MappingProxyType(names)
        known = self._names[root.name].get(posixpath.basename(path), ())
        return tuple(name for name in known if f"/{name}".endswith(f"/{path}"))

    def _place(self, root: Root, path: str) -> RootFile | None:
        key = (root.name, path)
        if key not in self._read:
            try:
                self._read[key] = read_source(path, root.tree.read(path))
            except (FileNotFoundError, UpstreamError, UpstreamUnavailable):
                self._read[key] = None
        source = self._read[key]
        return None if source is None else RootFile(root, source)


def _same(one: str, other: str) -> bool:
    return bool(one) and one.lower() == other.lower()


__all__ = ("OPTION", "Root", "RootFile", "Roots", "SourceRefused", "open_roots")
