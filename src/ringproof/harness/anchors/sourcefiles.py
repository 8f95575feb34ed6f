"""Finds the file of a commit that has the content of an anchor's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringproof.errors import InputError
from ringproof.harness.cards.model import PackageUpstream, RepositoryUpstream
from ringproof.harness.upstreams.choice import UpstreamChoice
from ringproof.harness.upstreams.specs import open_tree
from ringproof.harness.upstreams.submodules import Submodule
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamTree

_LAYOUTS = ("", "src/")  # places of packages in a repository


class SourceFinder:
    """Finds the sources of a tree's files; this base class knows none.

    Attributes:
        commit: For a release, the commit in which its files were found unchanged.
        submodules: Submodules that contain one of the files, by path.
    """

    def __init__(self) -> None:
        self.commit: str | None = None
        self.submodules: dict[str, Submodule] = {}

    def source(self, path: str) -> str | None:
        """Return the path in the commit if it differs, or if the tree is a release.

        Args:
            path: File of the tree.
        """
        return None


class _GitSources(SourceFinder):
    """Finds files of a commit behind links and in submodules."""

    def __init__(self, tree: Any) -> None:
        super().__init__()
        self._tree = tree

    def source(self, path: str) -> str | None:
        place = self._tree.locate(path)
        real = str(place.path)
        if place.submodule is not None:
            self.submodules[place.submodule.path] = place.submodule
            real = f"{place.submodule.path}/{real}"
        return real if real != path else None


class _ReleaseSources(SourceFinder):
    """Finds files of a release that have the same bytes in the commit of the release."""

    def __init__(self, released: UpstreamTree, commit: Any) -> None:
        super().__init__()
        self._released = released
        self._commit = commit
        self._found: dict[str, str | None] = {}

    def source(self, path: str) -> str | None:
        if path not in self._found:
            self._found[path] = self._sought(path)
        return self._found[path]

    def _sought(self, path: str) -> str | None:
        content = self._released.read(path)
        for layout in _LAYOUTS:
            try:
                same = self._commit.read(f"{layout}{path}") == content
            except (FileNotFoundError, UpstreamError):
                continue
            if same:
                self.commit = self._commit.commit
                return f"{layout}{path}"
        return None


def source_finder(
    upstream: PackageUpstream | RepositoryUpstream, tree: UpstreamTree, choice: UpstreamChoice
) -> SourceFinder:
    """Return the object that finds the sources of a tree's files.

    Files of a release are searched in the commit that the card names for it, if the user gave that
    repository and it has the commit. Only files with the same bytes count, because other files have
    other line numbers.
    """
    if hasattr(tree, "locate"):
        return _GitSources(tree)
    if upstream.repo is None or upstream.commit is None:
        return SourceFinder()
    if isinstance(upstream, RepositoryUpstream) or not _is_release(upstream, tree):
        return SourceFinder()
    place = choice.submodules.find(upstream.repo)
    commit = None if place is None else _commit(place, upstream.commit, choice)
    return SourceFinder() if commit is None else _ReleaseSources(tree, commit)


def _is_release(upstream: PackageUpstream, tree: UpstreamTree) -> bool:
    release = tree.origin.partition(":")[2].partition("#")[0]
    return release == f"{upstream.package}=={upstream.version}"


def _commit(place: Path, commit: str, choice: UpstreamChoice) -> Any:
    try:
        return open_tree(f"git:{place}@{commit}", cache=choice.cache, offline=True)
    except InputError:
        return None  # there are no permalinks then; nothing else needs the repository
