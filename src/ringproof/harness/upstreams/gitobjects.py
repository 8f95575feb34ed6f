"""Reads the objects of one commit of a git repository by path.

Loose objects are checked before libgit2 opens them: version 1.9 never returns from the header of a
loose commit, tree or tag whose file is truncated, because it inflates in an endless loop in C,
where Python's signal handlers do not run. An interrupted copy leaves such files.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pygit2
from pygit2.enums import FileMode, RepositoryOpenFlag

from ringproof.errors import InputError
from ringproof.harness.upstreams.tree import MAX_FILE_BYTES, UpstreamError, refuse_escape

FILES = (FileMode.BLOB, FileMode.BLOB_EXECUTABLE)

_MAX_DEPTH = 100
_MAX_TAGS = 10  # a tag of a tag of ...
_BLOCK = 1 << 16
# A corrupt or truncated repository raises any of these, depending on the broken object.
_FAILURES = (pygit2.GitError, OSError, ValueError, KeyError)


class CommitObjects:
    """The objects of one commit, without following links and submodules.

    Args:
        path: Bare or normal repository, or folder of a work tree. Parents are not searched.
        ref: Branch, tag, remote branch (``origin/main`` or ``main``), or commit id.

    Raises:
        InputError: No repository, no such ref, or (from any method) the repository is corrupt.
    """

    def __init__(self, path: Path, ref: str) -> None:
        self.spec = f"git:{path}@{ref}"
        try:
            self._repository = pygit2.Repository(str(path), RepositoryOpenFlag.NO_SEARCH)
        except _FAILURES as error:
            problem = f"no readable git repository: {_reason(error)}"
            foreign = "not owned by" in problem
            remedy = "add it to git's safe.directory" if foreign else "name a clone of the upstream"
            raise InputError("git", path, problem, remedy) from error
        commit = _commit(self._repository, path, ref)
        try:
            _refuse_truncated(self._repository, commit.tree_id)
            self._root = commit.tree
        except _FAILURES as error:
            raise self._corrupt(error) from error
        self.commit = str(commit.id)

    @property
    def remote(self) -> str | None:
        """URL of ``origin``, if there is one."""
        try:
            return self._repository.remotes["origin"].url
        except _FAILURES:
            return None

    def entry(self, path: str) -> tuple[pygit2.Object, str]:
        """Return the object at a path, and the rest of the path after a submodule.

        Raises:
            FileNotFoundError: There is no object.
            UpstreamError: The path leaves the root.
        """
        refuse_escape(path)
        entry: pygit2.Object = self._root
        parts = path.split("/")
        for place, part in enumerate(parts):
            if entry.filemode == FileMode.COMMIT:
                return entry, "/".join(parts[place:])
            if not isinstance(entry, pygit2.Tree):
                raise FileNotFoundError(path)
            try:
                _refuse_truncated(self._repository, entry.id)
                inside = part in entry
                entry = entry[part] if inside else entry
            except _FAILURES as error:
                raise self._corrupt(error) from error
            if not inside:
                raise FileNotFoundError(path)
        return entry, ""

    def content(self, blob: pygit2.Object) -> bytes:
        """Return the bytes of a file or of a link.

        Raises:
            UpstreamError: The file is too large.
        """
        try:
            _refuse_truncated(self._repository, blob.id)
            # Read the size in the object's header before its content is unpacked.
            _, size = self._repository.odb.read_header(blob.id)
            if size > MAX_FILE_BYTES:
                raise UpstreamError(f"{blob.name}: {size:,} bytes are too large for a source file")
            data: bytes = blob.data  # type: ignore[attr-defined] # of any object
        except _FAILURES as error:
            raise self._corrupt(error) from error
        return data

    def walk(self, under: str) -> Iterator[tuple[str, pygit2.Object]]:
        """Yield files, links and submodules whose path starts with ``under`` or may lead there."""
        pending: list[tuple[str, pygit2.Object]] = [("", self._root)]
        while pending:
            prefix, tree = pending.pop()
            for name, entry in self._children(tree):
                path = f"{prefix}{name}"
                if not path.startswith(under) and not under.startswith(f"{path}/"):
                    continue
                if entry.filemode != FileMode.TREE:
                    yield path, entry
                elif path.count("/") < _MAX_DEPTH:
                    pending.append((f"{path}/", entry))

    def _children(self, tree: pygit2.Object) -> list[tuple[str, pygit2.Object]]:
        if not isinstance(tree, pygit2.Tree):
            return []
        try:
            _refuse_truncated(self._repository, tree.id)
            return [(entry.name or "", entry) for entry in tree]
        except _FAILURES as error:
            raise self._corrupt(error) from error

    def _corrupt(self, error: Exception) -> InputError:
        problem = f"the repository is damaged or incomplete: {_reason(error)}"
        return InputError("git", self.spec, problem, "fetch it again in full")


def _commit(repository: pygit2.Repository, path: Path, ref: str) -> pygit2.Commit:
    """Return the commit of a ref, which may be a branch of the remote."""
    failure: Exception | None = None
    for name in (ref, f"refs/remotes/origin/{ref}"):
        try:
            _refuse_truncated_ref(repository, name)
            return repository.revparse_single(name).peel(pygit2.Commit)
        except _FAILURES as error:
            failure = failure or error
    missing = isinstance(failure, KeyError)
    problem = f"no ref {ref!r} in this repository" if missing else _reason(failure)
    remedy = "name a branch, tag or commit that it has, or fetch it first"
    if missing and _is_reference(repository, ref):
        problem = f"the repository is damaged or incomplete: {ref!r} names a commit that is missing"
        remedy = "fetch it again in full"
    raise InputError("git", path, problem, remedy) from failure


def _refuse_truncated_ref(repository: pygit2.Repository, name: str) -> None:
    """Check the objects that resolving a name opens: its first object, tags, and its commit.

    Ancestors (``main~2``) are not checked.
    """
    start = re.split("[~^]", name, maxsplit=1)[0]
    current: pygit2.Oid | None = _target(repository, start)
    for _ in range(_MAX_TAGS):
        if current is None:
            return
        _refuse_truncated(repository, current)
        found = repository.get(current)
        current = found.target if isinstance(found, pygit2.Tag) else None


def _target(repository: pygit2.Repository, name: str) -> pygit2.Oid | None:
    """Return the id of a ref or an abbreviated id without opening an object."""
    try:
        return pygit2.Oid(hex=str(repository.lookup_reference_dwim(name).resolve().target))
    except _FAILURES:
        pass
    try:
        return repository.expand_id(name)
    except _FAILURES:
        return None


def _is_reference(repository: pygit2.Repository, ref: str) -> bool:
    try:
        return repository.lookup_reference_dwim(ref) is not None
    except _FAILURES:
        return False


def _reason(error: Exception | None) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _refuse_truncated(repository: pygit2.Repository, oid: pygit2.Oid) -> None:
    """Refuse a truncated loose object. Complete, packed and missing objects are accepted.

    Raises:
        OSError: The object is not a regular file or cannot be read.
        ValueError: The file is truncated or is not a zlib stream.
    """
    object_id = str(oid)
    path = _common_folder(Path(repository.path)) / "objects" / object_id[:2] / object_id[2:]
    if not path.exists():
        return
    if not path.is_file():
        raise OSError(f"{object_id} is not a regular file")
    inflater = zlib.decompressobj()
    with path.open("rb") as stream:
        while not inflater.eof:
            block = inflater.unconsumed_tail or stream.read(_BLOCK)
            try:
                made = inflater.decompress(block, _BLOCK)  # in parts, since its size is unknown
            except zlib.error as error:
                raise ValueError(f"the file of object {object_id}: {error}") from error
            if not (block or made or inflater.eof):
                raise ValueError(f"the file of object {object_id} is cut short")


def _common_folder(git_folder: Path) -> Path:
    """Return the folder that a linked work tree shares with its repository."""
    try:
        return git_folder / (git_folder / "commondir").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return git_folder
