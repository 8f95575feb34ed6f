"""A commit of a git repository as an upstream, including its submodules.

Loose objects are checked before libgit2 opens them: version 1.9 never returns from the header of a
loose commit, tree or tag whose file is truncated, because it inflates in an endless loop in C,
where Python's signal handlers do not run. An interrupted copy leaves such files.
"""

from __future__ import annotations

import posixpath
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pygit2
from pygit2.enums import FileMode, RepositoryOpenFlag

from ringproof.errors import InputError
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
from ringproof.harness.upstreams.tree import MAX_FILE_BYTES, UpstreamError, refuse_escape

_MAX_LINKS = 8
_FILES = (FileMode.BLOB, FileMode.BLOB_EXECUTABLE)

_MAX_DEPTH = 100
_MAX_TAGS = 10  # a tag of a tag of ...
_BLOCK = 1 << 16
# A corrupt or truncated repository raises any of these, depending on the broken object.
_FAILURES = (pygit2.GitError, OSError, ValueError, KeyError)


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
        if entry.filemode not in _FILES:
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
            target = self._objects.content(entry).decode("utf-8", "replace")
            # `entry` refuses a path that leaves the root.
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
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
        if entry.filemode not in _FILES:  # git also refuses a link here
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
            raise MissingSubmodule(path, own)
        if own.path not in self._inside:
            try:
                tree = GitTree(source, own.commit, submodules=self._sources, name=own.repo)
            except InputError as error:
                field = f"--upstream {own.repo}"
                problem = f"cannot stand in for the submodule {own.path}: {error.problem}"
                raise InputError(field, source, problem, f"fetch {own.commit} into it") from error
            self._inside[own.path] = tree
        return self._inside[own.path]

    def _paths(self, under: str, budget: Iterator[int]) -> Iterator[str]:
        links = []
        for path, entry in self._objects.walk(under):
            if entry.filemode == FileMode.COMMIT:
                links.append((path, entry))
            elif entry.filemode in _FILES and path.startswith(under):
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
            raise InputError("--upstream", self._objects.spec, problem, remedy)
        return self._open(own, own.path)


def _below(outer: Submodule, inner: Submodule | None) -> Submodule:
    return outer if inner is None else replace(inner, path=f"{outer.path}/{inner.path}")


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
        with self._readable():
            _refuse_truncated(self._repository, commit.tree_id)
            self._root = commit.tree
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
            with self._readable():
                _refuse_truncated(self._repository, entry.id)
                inside = part in entry
                entry = entry[part] if inside else entry
            if not inside:
                raise FileNotFoundError(path)
        return entry, ""

    def content(self, blob: pygit2.Object) -> bytes:
        """Return the bytes of a file or of a link.

        Raises:
            UpstreamError: The file is too large.
        """
        with self._readable():
            _refuse_truncated(self._repository, blob.id)
            # Read the size in the object's header before its content is unpacked.
            _, size = self._repository.odb.read_header(blob.id)
            if size > MAX_FILE_BYTES:
                raise UpstreamError(f"{blob.name}: {size:,} bytes are too large for a source file")
            data: bytes = blob.data  # type: ignore[attr-defined] # of any object
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
        found: list[tuple[str, pygit2.Object]] = []
        with self._readable():
            _refuse_truncated(self._repository, tree.id)
            found += ((entry.name or "", entry) for entry in tree)
        return found

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Refuse the repository if an object in it cannot be read inside."""
        try:
            yield
        except _FAILURES as error:
            problem = f"the repository is damaged or incomplete: {_reason(error)}"
            raise InputError("git", self.spec, problem, "fetch it again in full") from error


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
    current: pygit2.Oid | None = _named(repository, start)
    for _ in range(_MAX_TAGS):
        if current is None:
            return
        _refuse_truncated(repository, current)
        found = repository.get(current)
        current = found.target if isinstance(found, pygit2.Tag) else None


def _named(repository: pygit2.Repository, name: str) -> pygit2.Oid | None:
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
