"""One commit of a git repository, read straight from its object database."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path

import pygit2
from pygit2.enums import FileMode, RepositoryOpenFlag

from ringproof.errors import InputError
from ringproof.harness.anchors.tree import MAX_FILE_BYTES, UpstreamError, refuse_escape

_MAX_LINKS = 8
_MAX_DEPTH = 100
# A corrupt or truncated repository shows as any of these, depending on the object that is bad.
_FAILURES = (pygit2.GitError, OSError, ValueError, KeyError)
_FILES = (FileMode.BLOB, FileMode.BLOB_EXECUTABLE)


class GitTree:
    """The files of one commit; neither a work tree nor the ``git`` program is needed.

    Args:
        path: A bare or normal repository, or a work tree's folder; parents are not searched.
        ref: Branch, tag, remote branch (``origin/main`` or ``main``), or commit id.

    Raises:
        InputError: No repository, no such ref, or the repository is corrupt.
    """

    def __init__(self, path: Path, ref: str) -> None:
        self._spec = f"git:{path}@{ref}"
        self._ref = ref
        try:
            self._repository = pygit2.Repository(str(path), RepositoryOpenFlag.NO_SEARCH)
        except _FAILURES as error:
            problem = f"no readable git repository: {_reason(error)}"
            foreign = "not owned by" in problem
            remedy = "add it to git's safe.directory" if foreign else "name a clone of the upstream"
            raise InputError("git", path, problem, remedy) from error
        commit = _commit(self._repository, path, ref)
        try:
            self._root = commit.tree
        except _FAILURES as error:
            raise self._corrupt(error) from error
        self.commit = str(commit.id)

    @property
    def origin(self) -> str:
        """``git:REF#commit=ID``: it names no folder of this machine."""
        return f"git:{self._ref}#commit={self.commit}"

    def read(self, path: str) -> bytes:
        """See `UpstreamTree.read`; links are followed inside the tree only.

        Raises:
            InputError: An object is missing or damaged: the repository is of no use.
        """
        entry = self._entry(path)
        hops = 0
        while entry.filemode == FileMode.LINK:
            hops += 1
            if hops > _MAX_LINKS:
                raise UpstreamError(f"{path}: more than {_MAX_LINKS} links in a row")
            path = _target(path, self._content(entry))
            entry = self._entry(path)
        if entry.filemode not in _FILES:
            raise FileNotFoundError(path)
        return self._content(entry)

    def paths(self, under: str = "") -> Iterator[str]:
        """See `UpstreamTree.paths`; links and submodules are left out."""
        pending: list[tuple[str, pygit2.Object]] = [("", self._root)]
        while pending:
            prefix, tree = pending.pop()
            if not prefix.startswith(under) and not under.startswith(prefix):
                continue
            children = self._children(tree)
            if prefix.count("/") < _MAX_DEPTH:
                folders = (item for item in children if item[1].filemode == FileMode.TREE)
                pending += [(f"{prefix}{name}/", entry) for name, entry in folders]
            files = (f"{prefix}{name}" for name, entry in children if entry.filemode in _FILES)
            yield from (path for path in files if path.startswith(under))

    def _children(self, tree: pygit2.Object) -> list[tuple[str, pygit2.Object]]:
        if not isinstance(tree, pygit2.Tree):
            return []
        try:
            return [(entry.name or "", entry) for entry in tree]
        except _FAILURES as error:
            raise self._corrupt(error) from error

    def _entry(self, path: str) -> pygit2.Object:
        refuse_escape(path)
        entry: pygit2.Object = self._root
        for part in path.split("/"):
            if not isinstance(entry, pygit2.Tree):
                raise FileNotFoundError(path)
            try:
                inside = part in entry
                entry = entry[part] if inside else entry
            except _FAILURES as error:
                raise self._corrupt(error) from error
            if not inside:
                raise FileNotFoundError(path)
        return entry

    def _content(self, blob: pygit2.Object) -> bytes:
        try:
            _, size = self._size(blob)
            if size > MAX_FILE_BYTES:
                raise UpstreamError(f"{blob.name}: {size:,} bytes is no source file")
            data: bytes = blob.data  # type: ignore[attr-defined]
        except _FAILURES as error:
            raise self._corrupt(error) from error
        return data

    def _size(self, blob: pygit2.Object) -> tuple[int, int]:
        """Type and size from the object's header, before its content is unpacked."""
        return self._repository.odb.read_header(blob.id)

    def _corrupt(self, error: Exception) -> InputError:
        problem = f"the repository is damaged or incomplete: {_reason(error)}"
        return InputError("git", self._spec, problem, "fetch it again in full")


def _commit(repository: pygit2.Repository, path: Path, ref: str) -> pygit2.Commit:
    """The commit of a ref; a branch that only the remote has counts, too."""
    failure: Exception | None = None
    for name in (ref, f"refs/remotes/origin/{ref}"):
        try:
            return repository.revparse_single(name).peel(pygit2.Commit)
        except _FAILURES as error:
            failure = failure or error
    missing = isinstance(failure, KeyError)
    problem = f"no ref {ref!r} in this repository" if missing else _reason(failure)
    remedy = "name a branch, tag or commit that it has, or fetch it first"
    raise InputError("git", path, problem, remedy) from failure


def _target(link: str, content: bytes) -> str:
    """Where a link leads, from the root; whoever reads it there refuses what is outside."""
    text = content.decode("utf-8", "replace")
    return posixpath.normpath(posixpath.join(posixpath.dirname(link), text))


def _reason(error: Exception | None) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
