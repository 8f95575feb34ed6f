"""The file of a repository's commit that holds what an anchor's path holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringproof.errors import InputError
from ringproof.harness.cards.model import PackageUpstream, RepositoryUpstream
from ringproof.harness.upstreams.choice import UpstreamChoice
from ringproof.harness.upstreams.specs import open_tree
from ringproof.harness.upstreams.submodules import Submodule
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamTree

_LAYOUTS = ("", "src/")  # where packages stand in a repository


class SourceFinder:
    """Nothing is known of where the files of a tree come from.

    Attributes:
        commit: Of a release: where its files were found unchanged.
        submodules: By path; those that a path led into.
    """

    def __init__(self) -> None:
        self.commit: str | None = None
        self.submodules: dict[str, Submodule] = {}

    def source(self, path: str) -> str | None:
        """The path in the commit, where it is another or the path's tree is a release.

        Args:
            path: A file that the tree has.
        """
        return None


class _GitSources(SourceFinder):
    """The files of a commit, behind links and in submodules."""

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
    """The files of a release that the commit it was made from has with the same bytes."""

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
    """How to find the sources of a tree's files.

    A release's are sought in the commit that the card names for it, when the user gave that
    repository and it has the commit; they count only with the same bytes, because lines of
    another text would lead nowhere.
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
        return None  # no permalinks then; the repository is not needed for anything else
