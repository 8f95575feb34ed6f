"""A commit of a git repository as an upstream, including its submodules."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pygit2
from pygit2.enums import FileMode

from ringproof.errors import InputError
from ringproof.harness.upstreams.gitobjects import FILES, CommitObjects
from ringproof.harness.upstreams.submodules import (
    MAX_BYTES,
    MAX_LISTED,
    MAX_NESTED,
    MissingSubmodule,
    Submodule,
    SubmoduleSources,
    repository_of,
    submodule_urls,
)
from ringproof.harness.upstreams.tree import UpstreamError

_MAX_LINKS = 8


@dataclass(frozen=True)
class Location:
    """Place of a file after following links and submodules.

    Attributes:
        path: Path from the root of the submodule, or of the repository if there is none.
        submodule: Innermost submodule.
    """

    path: str
    submodule: Submodule | None = None


class GitTree:
    """The files of one commit, without a work tree or the ``git`` program.

    Paths in a submodule are read at its pinned commit from the repository given for it.

    Args:
        path, ref: See `CommitObjects`.
        submodules: Repositories of its submodules; none by default.
        name: ``OWNER/NAME`` or URL to which a submodule's URL may be relative; by default the URL
            of the repository's ``origin``.

    Raises:
        InputError: No repository, no such ref, or (from any method) the repository is corrupt.
    """

    def __init__(
        self,
        path: Path,
        ref: str,
        *,
        submodules: SubmoduleSources | None = None,
        name: str | None = None,
    ) -> None:
        self._objects = CommitObjects(path, ref)
        self._base = name or self._objects.remote
        self._sources = SubmoduleSources() if submodules is None else submodules
        self._inside: dict[str, GitTree] = {}
        self._urls: dict[str, str] | None = None
        self.commit = self._objects.commit
        self.origin = f"git:{ref}#commit={self.commit}"

    def read(self, path: str) -> bytes:
        """See `UpstreamTree.read`. Links are only followed inside their repository.

        Raises:
            UpstreamUnavailable: The file is in a submodule whose repository was not given.
            InputError: An object is missing or damaged, or a given repository lacks the commit
                at which a submodule is pinned.
        """
        objects, entry, _ = self._followed(path, 0)
        if entry.filemode not in FILES:
            raise FileNotFoundError(path)
        return objects.content(entry)

    def locate(self, path: str) -> Location:
        """Return the place of a file's content; raises like `read`."""
        return self._followed(path, 0)[2]

    def paths(self, under: str = "") -> Iterator[str]:
        """See `UpstreamTree.paths`; links are left out.

        The files of submodules whose repository was given come after the repository's own.

        Raises:
            InputError: As `read`; and for more than `MAX_LISTED` submodules.
        """
        return self._paths(under, iter(range(MAX_LISTED)))

    def submodules(self) -> tuple[Submodule, ...]:
        """Return the submodules, recursively if repositories were given; raises like `paths`."""
        return tuple(self._submodules(iter(range(MAX_LISTED))))

    def enter(self, path: str) -> GitTree:
        """Return the tree of a direct submodule of this repository; raises like `read`."""
        entry, _ = self._objects.entry(path)
        if entry.filemode != FileMode.COMMIT:
            raise FileNotFoundError(path)
        return self._open(self._pinned(path, entry), path)

    def _followed(self, path: str, level: int) -> tuple[CommitObjects, pygit2.Object, Location]:
        """Return the object of a path and its place."""
        if level > MAX_NESTED:
            raise UpstreamError(f"{path}: more than {MAX_NESTED} submodules inside one another")
        for _ in range(_MAX_LINKS + 1):
            entry, rest = self._objects.entry(path)
            if rest:
                own = self._pinned(path[: -len(rest) - 1], entry)
                objects, entry, place = self._open(own, path)._followed(rest, level + 1)
                return objects, entry, Location(place.path, _below(own, place.submodule))
            if entry.filemode != FileMode.LINK:
                return self._objects, entry, Location(path)
            path = _target(path, self._objects.content(entry))
        raise UpstreamError(f"{path}: more than {_MAX_LINKS} links in a row")

    def _pinned(self, path: str, entry: pygit2.Object) -> Submodule:
        if self._urls is None:
            self._urls = dict(submodule_urls(self._gitmodules()))
        pin = str(entry.id)
        url = self._urls.get(path)
        repo = None if url is None else repository_of(url, self._base)
        if repo is None:
            problem = "is not in .gitmodules" if url is None else "has a URL without OWNER/NAME"
            raise UpstreamError(f"the submodule {path}, pinned at {pin}, {problem}")
        return Submodule(path, repo, pin)

    def _gitmodules(self) -> str:
        try:
            entry, _ = self._objects.entry(".gitmodules")
        except FileNotFoundError:
            return ""
        if entry.filemode not in FILES:  # git also refuses a link here
            return ""
        data = self._objects.content(entry)
        if len(data) > MAX_BYTES:
            raise UpstreamError(
                f".gitmodules: {len(data):,} bytes are too large for a list of submodules"
            )
        return data.decode("utf-8", "replace")

    def _open(self, own: Submodule, path: str) -> GitTree:
        source = self._sources.find(own.repo)
        if source is None:
            raise MissingSubmodule(path, own, self._sources.option)
        if own.path not in self._inside:
            try:
                tree = GitTree(source, own.commit, submodules=self._sources, name=own.repo)
            except InputError as error:
                field = f"{self._sources.option} {own.repo}"
                problem = f"cannot stand in for the submodule {own.path}: {error.problem}"
                raise InputError(field, source, problem, f"fetch {own.commit} into it") from error
            self._inside[own.path] = tree
        return self._inside[own.path]

    def _paths(self, under: str, budget: Iterator[int]) -> Iterator[str]:
        links = []
        for path, entry in self._objects.walk(under):
            if entry.filemode == FileMode.COMMIT:
                links.append((path, entry))
            elif entry.filemode in FILES and path.startswith(under):
                yield path
        for path, entry in links:
            own = self._known(path, entry)
            inside = None if own is None else self._entered(own, budget)
            if inside is not None:
                below = inside._paths(under[len(path) + 1 :], budget)
                yield from (f"{path}/{inner}" for inner in below)

    def _submodules(self, budget: Iterator[int]) -> Iterator[Submodule]:
        for path, entry in self._objects.walk(""):
            own = self._known(path, entry) if entry.filemode == FileMode.COMMIT else None
            if own is None:
                continue
            yield own
            inside = self._entered(own, budget)
            if inside is not None:
                yield from (_below(own, inner) for inner in inside._submodules(budget))

    def _known(self, path: str, entry: pygit2.Object) -> Submodule | None:
        try:
            return self._pinned(path, entry)
        except UpstreamError:
            return None

    def _entered(self, own: Submodule, budget: Iterator[int]) -> GitTree | None:
        """Return the tree of a submodule for a listing, or ``None`` without its repository."""
        if self._sources.find(own.repo) is None:
            return None
        if next(budget, None) is None:
            problem = f"more than {MAX_LISTED} submodules"
            remedy = "give fewer of their repositories"
            raise InputError(self._sources.option, self._objects.spec, problem, remedy)
        return self._open(own, own.path)


def _below(outer: Submodule, inner: Submodule | None) -> Submodule:
    return outer if inner is None else replace(inner, path=f"{outer.path}/{inner.path}")


def _target(link: str, content: bytes) -> str:
    """Return the target of a link from the root. The reader refuses targets outside of it."""
    text = content.decode("utf-8", "replace")
    return posixpath.normpath(posixpath.join(posixpath.dirname(link), text))
