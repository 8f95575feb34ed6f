"""A commit of a git repository as an upstream, including its submodules."""

from __future__ import annotations

import posixpath
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from ringproof.errors import InputError, shown
from ringproof.upstream.gitprogram import BlobReader, Git, first_line, reason, remedy_of
from ringproof.upstream.tree import (
    MAX_FILE_BYTES,
    UpstreamError,
    UpstreamTree,
    UpstreamUnavailable,
    refuse_escape,
)

MAX_NESTED = 8
"""How many submodules may lie inside one another."""
MAX_LISTED = 64
"""How many submodules one listing enters: a few commits can nest into millions of paths."""
MAX_MODULES_BYTES = 500_000
"""Largest size of ``.gitmodules``, far above that of real ones."""
_MAX_LINKS = 8
_FILES, _LINK, _SUBMODULE = ("100644", "100755"), "120000", "160000"

_SCP = re.compile(r"(?:[^@/\s]+@)?[^/:\s]{2,}:(?!//)(.+)")  # git@host:OWNER/NAME.git
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class SubmoduleSources:
    """Repositories that the user gave.

    Attributes:
        paths: Clones or bare repositories by ``OWNER/NAME``, ignoring case.
    """

    paths: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))

    def find(self, repo: str) -> Path | None:
        """Return the repository of that name, or ``None`` if it was not given."""
        wanted = repo.casefold()
        return next((path for name, path in self.paths.items() if name.casefold() == wanted), None)


@dataclass(frozen=True)
class Submodule:
    """A submodule of one commit.

    Attributes:
        path: Path from the root of the outermost repository.
        repo: ``OWNER/NAME``, from ``.gitmodules``.
        commit: Pinned commit.
    """

    path: str
    repo: str
    commit: str


@dataclass(frozen=True)
class Location:
    """Place of a file after following links and submodules.

    Attributes:
        path: Path from the root of the submodule, or of the repository if there is none.
        submodule: Innermost submodule.
    """

    path: str
    submodule: Submodule | None = None


class MissingSubmodule(UpstreamUnavailable, InputError):
    """A path leads into a submodule whose repository was not given.

    It is both an `UpstreamUnavailable`, for callers that report "not here", and an `InputError`.
    """

    def __init__(self, path: str, submodule: Submodule) -> None:
        sentence = (
            f"the file is in the submodule {submodule.path}, pinned at {submodule.commit} of "
            f"{submodule.repo}; give that with --upstream {submodule.repo}=git:PATH"
        )
        InputError.__init__(self, path, sentence)


class GitTree(UpstreamTree):
    """The files of one commit, without a work tree.

    Paths in a submodule are read at its pinned commit from the repository given for it.

    Args:
        path: Bare or normal repository, or folder of a work tree. Parents are not searched.
        ref: Branch, tag, remote branch (``origin/main`` or ``main``), or commit id.
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
        self._git, self._spec, self._name = Git(path.absolute()), f"git:{path}@{ref}", name
        self._remedy = remedy_of(path)
        self._sources = SubmoduleSources() if submodules is None else submodules
        self._inside: dict[str, GitTree] = {}
        self._repositories: Mapping[str, str | None] | None = None
        self._reader: BlobReader | None = None
        self.commit: str = _commit(self._git, path, ref)
        self.origin = f"git:{ref}#commit={self.commit}"
        listed = self._git.run("ls-tree", "-r", "-z", "--full-tree", self.commit)
        if listed.code != 0:
            raise self._damaged(reason(listed.log))
        rows = (row.split("\t", 1) for row in listed.out.split("\0") if row)
        self._entries = {name: (head.split()[0], head.split()[2]) for head, name in rows}
        self._pins = {
            name: pin for name, (mode, pin) in self._entries.items() if mode == _SUBMODULE
        }

    def _read(self, path: str) -> bytes:
        """Read a file. Links are only followed inside their repository.

        Raises:
            InputError: An object is missing or damaged, or a given repository lacks the commit
                at which a submodule is pinned.
        """
        tree, place = self._followed(path)
        return tree._content(place.path)

    def locate(self, path: str) -> Location:
        """Return the place of a file's content; raises like `read`."""
        return self._followed(path)[1]

    def paths(self, under: str = "") -> Iterator[str]:
        """See `UpstreamTree.paths`; links are left out.

        The files of submodules whose repository was given come after the repository's own.

        Raises:
            InputError: As `read`; and for more than `MAX_LISTED` submodules.
        """
        return self._listed(under, iter(range(MAX_LISTED)))

    def submodules(self) -> tuple[Submodule, ...]:
        """Return the submodules, recursively if repositories were given; raises like `paths`."""
        return tuple(self._submodules(iter(range(MAX_LISTED))))

    def enter(self, path: str) -> GitTree:
        """Return the tree of a direct submodule of this repository; raises like `read`."""
        if path not in self._pins:
            raise FileNotFoundError(path)
        return self._open(self._pinned(path), path)

    def _content(self, path: str) -> bytes:
        mode, blob = self._entries[path]
        if mode not in (*_FILES, _LINK):
            raise FileNotFoundError(path)
        if self._reader is None:
            self._reader = BlobReader(self._git)
            weakref.finalize(self, self._reader.close)
        try:
            return self._reader.read(blob, MAX_FILE_BYTES)
        except OverflowError as error:
            self._reader = None
            raise UpstreamError(f"{path}: {error} are too large for a source file") from error
        except OSError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> InputError:
        problem = f"is damaged or incomplete ({why[:200]})"
        return InputError("git", f"{shown(self._spec)} {problem}; {self._remedy}")

    def _followed(self, path: str, level: int = 0) -> tuple[GitTree, Location]:
        """Return the tree that has the file of a path, and its place."""
        if level > MAX_NESTED:
            raise UpstreamError(f"{path}: more than {MAX_NESTED} submodules inside one another")
        for _ in range(_MAX_LINKS + 1):
            refuse_escape(path)
            outer = next((pin for pin in self._pins if path.startswith(f"{pin}/")), None)
            if outer is not None:
                own = self._pinned(outer)
                tree, place = self._open(own, path)._followed(path[len(outer) + 1 :], level + 1)
                return tree, Location(place.path, _below(own, place.submodule))
            mode = self._entries.get(path, ("",))[0]
            if mode in _FILES:
                return self, Location(path)
            if mode != _LINK:
                raise FileNotFoundError(path)
            target = self._content(path).decode("utf-8", "replace")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        raise UpstreamError(f"{path}: more than {_MAX_LINKS} links in a row")

    def _pinned(self, path: str) -> Submodule:
        if self._repositories is None:
            base = self._name or first_line(self._git, "config", "--get", "remote.origin.url")
            urls = submodule_urls(self._gitmodules())
            self._repositories = {
                place: repository_of(url, base or None) for place, url in urls.items()
            }
        repo, pin = self._repositories.get(path), self._pins[path]
        if repo is None:
            known = path in self._repositories
            problem = "has a URL without OWNER/NAME" if known else "is not in .gitmodules"
            raise UpstreamError(f"the submodule {path}, pinned at {pin}, {problem}")
        return Submodule(path, repo, pin)

    def _gitmodules(self) -> str:
        if self._entries.get(".gitmodules", ("",))[0] not in _FILES:  # git also refuses a link
            return ""
        data = self._content(".gitmodules")
        if len(data) > MAX_MODULES_BYTES:
            problem = f"{len(data):,} bytes are too large for a list of submodules"
            raise UpstreamError(f".gitmodules: {problem}")
        return data.decode("utf-8", "replace")

    def _open(self, own: Submodule, path: str) -> GitTree:
        source = self._sources.find(own.repo)
        if source is None:
            raise MissingSubmodule(path, own)
        if own.path not in self._inside:
            try:
                tree = GitTree(source, own.commit, submodules=self._sources, name=own.repo)
            except InputError as error:
                option = f"--upstream {own.repo}"
                why = error.sentence.partition("; ")[0]  # its remedy is for another option
                problem = f"cannot stand in for the submodule {own.path}: {why}"
                raise InputError(
                    option, f"{shown(source)} {problem}; fetch {own.commit} into it"
                ) from error
            self._inside[own.path] = tree
        return self._inside[own.path]

    def _listed(self, under: str, budget: Iterator[int]) -> Iterator[str]:
        for path, (mode, _) in self._entries.items():
            if mode in _FILES and path.startswith(under):
                yield path
        for own, inside in self._modules(under, budget):
            if inside is not None:
                below = inside._listed(under[len(own.path) + 1 :], budget)
                yield from (f"{own.path}/{inner}" for inner in below)

    def _submodules(self, budget: Iterator[int]) -> Iterator[Submodule]:
        for own, inside in self._modules("", budget):
            yield own
            if inside is not None:
                yield from (_below(own, inner) for inner in inside._submodules(budget))

    def _modules(
        self, under: str, budget: Iterator[int]
    ) -> Iterator[tuple[Submodule, GitTree | None]]:
        """Yield the submodules that ``.gitmodules`` names, with the trees of those that were given.

        Args:
            under: Start of paths; submodules that have none are left out.
            budget: Has an item for each submodule that may still be entered.
        """
        for path in self._pins:
            if not path.startswith(under) and not under.startswith(f"{path}/"):
                continue
            try:
                own = self._pinned(path)
            except UpstreamError:
                continue
            if self._sources.find(own.repo) is None:
                yield own, None
                continue
            if next(budget, None) is None:
                problem = f"has more than {MAX_LISTED} submodules"
                remedy = "give fewer of their repositories"
                raise InputError("--upstream", f"{shown(self._spec)} {problem}; {remedy}")
            yield own, self._open(own, path)


def _below(outer: Submodule, inner: Submodule | None) -> Submodule:
    return outer if inner is None else replace(inner, path=f"{outer.path}/{inner.path}")


def _commit(git: Git, path: Path, ref: str) -> str:
    """Return the commit of a ref, which may be a branch of the remote."""
    inside = path / ".git" if (path / ".git").is_dir() else path
    for name in ("HEAD", "config"):  # git waits for a writer where one of them is a pipe
        if (inside / name).exists() and not (inside / name).is_file():
            problem = f"is not a readable git repository ({name} is not a regular file)"
            raise InputError("git", f"{shown(path)} {problem}; {remedy_of(path)}")
    verify = ("rev-parse", "--verify", "--quiet")
    ended = git.run(*verify, f"{ref}^{{commit}}")
    found = ended.out.strip() or first_line(git, *verify, f"refs/remotes/origin/{ref}^{{commit}}")
    if found:
        return found
    if "not a git repository" in ended.log:
        problem = f"is not a readable git repository ({reason(ended.log)[:200]})"
        remedy = remedy_of(path, "name a clone of the upstream")
        raise InputError("git", f"{shown(path)} {problem}; {remedy}")
    if ended.log or first_line(git, "rev-parse", "--symbolic-full-name", ref):
        why = reason(ended.log) if ended.log else f"{ref!r} names a commit that is missing"
        problem = f"is damaged or incomplete ({why[:200]})"
        raise InputError("git", f"{shown(path)} {problem}; {remedy_of(path)}")
    remedy = "name a branch, tag or commit that it has, or fetch it first"
    raise InputError("git", f"{shown(path)} has no ref {shown(ref)}; {remedy}")


def refuse_unused(sources: SubmoduleSources, trees: Iterable[UpstreamTree]) -> None:
    """Raise `InputError` for a repository that is not a submodule of the trees."""
    found = {item.repo for tree in trees for item in getattr(tree, "submodules", tuple)()}
    known = {name.casefold() for name in found}
    for name, path in sources.paths.items():
        if name.casefold() not in known:
            problem = f"names no ref, and no submodule ({', '.join(sorted(found)) or 'none there'})"
            given = f"{name}=git:{path}"
            raise InputError("--upstream", f"{shown(given)} {problem}; write NAME=git:PATH@REF")


def submodule_urls(text: str) -> Mapping[str, str]:
    """Return the URL of each submodule by path, without submodules that lack either.

    Args:
        text: Content of ``.gitmodules``. An ``include`` of another file is not followed.
    """
    ended = Git(None).run("config", "--file", "-", "--no-includes", "--null", "--list", feed=text)
    modules: dict[str, dict[str, str]] = {}
    for entry in ended.out.split("\0"):
        name, _, value = entry.partition("\n")
        if name.startswith("submodule."):
            module, _, variable = name.rpartition(".")
            modules.setdefault(module, {})[variable] = value
    found = {
        module["path"].rstrip("/"): module["url"]
        for module in modules.values()
        if module.get("path") and module.get("url")
    }
    return MappingProxyType(found)


def repository_of(url: str, base: str | None) -> str | None:
    """Return ``OWNER/NAME`` of a submodule's URL: the last two parts of its path, without ``.git``.

    Args:
        url: ``https://``, ``ssh://``, ``git@host:...``, a path, or relative to ``base``.
        base: URL or ``OWNER/NAME`` of the repository that has the submodule.

    Returns:
        ``None`` if the URL names none, or if it is relative and ``base`` is ``None``.
    """
    path = _path(url)
    if path is not None and url.startswith(("./", "../")):
        above = None if base is None else _path(base)
        path = None if above is None else posixpath.normpath(f"/{above.strip('/')}/{path}")
    if path is None:
        return None
    name = "/".join(path.strip("/").removesuffix(".git").split("/")[-2:])
    parts = name.split("/")
    return name if _NAME.fullmatch(name) and not {".", ".."} & set(parts) else None


def _path(url: str) -> str | None:
    if "://" in url:
        try:
            return urlsplit(url).path
        except ValueError:
            return None
    short = _SCP.fullmatch(url)
    return short[1] if short is not None else url
