"""Parses the specs by which users name upstreams, and opens their trees."""

from __future__ import annotations

import re
from pathlib import Path

from ringproof.errors import InputError
from ringproof.harness.upstreams.fetched import FETCHED, fetched_spec
from ringproof.harness.upstreams.releases import open_release
from ringproof.harness.upstreams.submodules import SubmoduleSources
from ringproof.harness.upstreams.tree import (
    FolderTree,
    InstalledTree,
    UpstreamError,
    UpstreamTree,
    UpstreamUnavailable,
)

FORMS = (
    "git:PATH@REF, fetched:OWNER/NAME@COMMIT, pip:PACKAGE==VERSION, dir:PATH or installed:PACKAGE"
)

_PIN = re.compile(
    r"(?P<package>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[0-9][A-Za-z0-9.!+_-]*)"
)
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
        InputError: The spec has another form, or its repository, ref, release, folder, package or
            network is not available.
    """
    kind, _, rest = spec.partition(":")
    if kind == "git":
        path, ref = split_git(rest)
        if ref is None:
            raise InputError("git", spec, "names no ref", "write git:PATH@REF")
        try:
            # Import here, since everything else works without libgit2, and loading it takes time.
            from ringproof.harness.upstreams.git import GitTree
        except ImportError as error:
            remedy = "install pygit2, or use dir:"
            raise InputError("git", path, "pygit2 cannot be loaded", remedy) from error
        return GitTree(path, ref, submodules=submodules, name=name)
    if kind == "fetched":
        match = FETCHED.fullmatch(rest)
        if match is None:
            remedy = "write fetched:OWNER/NAME@COMMIT"
            raise InputError("fetched", spec, "names no commit of a repository", remedy)
        found = fetched_spec(cache, match["repo"], match["ref"])
        name = match["repo"]
        return open_tree(found, cache=cache, offline=offline, submodules=submodules, name=name)
    if kind == "pip":
        match = _PIN.fullmatch(rest)
        if match is None:
            raise InputError("pip", spec, "names no exact release", "write pip:PACKAGE==VERSION")
        try:
            return open_release(match["package"], match["version"], cache=cache, offline=offline)
        except (UpstreamUnavailable, UpstreamError) as error:
            remedy = "check the network or fill the cache"
            raise InputError("pip", spec, " ".join(str(error).split()), remedy) from error
    if kind == "dir" and rest:
        return FolderTree(Path(rest))
    if kind == "installed" and _PACKAGE.fullmatch(rest):
        return InstalledTree(rest)
    raise InputError("upstream", spec, "is not an upstream", f"write {FORMS}")


def split_git(text: str) -> tuple[Path, str | None]:
    """Split ``PATH@REF`` at the first ``@`` that follows an existing folder.

    Returns:
        The path and the ref, which is ``None`` if it is not given.

    Raises:
        InputError: There is no such folder, or the ref is not valid.
    """
    if not text or "\0" in text:
        raise InputError("git", f"git:{text}", "names no repository", "write git:PATH@REF")
    places = [match.start() for match in re.finditer("@", text)]
    for place in places:
        path, ref = Path(text[:place]), text[place + 1 :]
        if place and path.is_dir():
            if _REF.fullmatch(ref) is None:
                problem = "is not a branch, tag or commit"
                raise InputError("git", ref, problem, "write it like main, v1.0 or 067f987df")
            return path, ref
    if Path(text).is_dir():
        return Path(text), None
    shown = text[: places[-1]] if places else text
    raise InputError("git", shown, "no such folder", "name a clone or a bare repository")


def absolute_spec(spec: str) -> str:
    """Return the spec with absolute paths, for a process in another working directory.

    >>> absolute_spec("pip:torch==2.6.0")
    'pip:torch==2.6.0'

    Raises:
        InputError: As `split_git`.
    """
    kind, _, rest = spec.partition(":")
    if kind == "dir" and rest:
        return f"dir:{Path(rest).resolve()}"
    if kind != "git":
        return spec
    path, ref = split_git(rest)
    return f"git:{path.resolve()}" + ("" if ref is None else f"@{ref}")
