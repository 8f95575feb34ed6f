"""Submodules: ``.gitmodules``, the repositories that the user gave, and the error if one lacks."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from ringproof.errors import InputError
from ringproof.harness.upstreams.tree import UpstreamTree, UpstreamUnavailable

MAX_NESTED = 8
"""How many submodules may lie inside one another."""
MAX_LISTED = 64
"""How many submodules one listing enters: a few commits can nest into millions of paths."""
MAX_BYTES = 500_000
"""Largest size of ``.gitmodules``, far above that of real ones."""

_SECTION = re.compile(r'\s*\[\s*submodule\s+"((?:[^"\\]|\\.)*)"\s*\]', re.IGNORECASE)
_OTHER_SECTION = re.compile(r"\s*\[[^\]]*\]")
_VARIABLE = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")
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


def refuse_unused(sources: SubmoduleSources, trees: Iterable[UpstreamTree]) -> None:
    """Raise `InputError` for a repository that is not a submodule of the trees."""
    found = {item.repo for tree in trees for item in getattr(tree, "submodules", tuple)()}
    known = {name.casefold() for name in found}
    for name, path in sources.paths.items():
        if name.casefold() not in known:
            problem = f"names no ref, and no submodule ({', '.join(sorted(found)) or 'none there'})"
            given = f"{name}=git:{path}"
            raise InputError("--upstream", given, problem, "write NAME=git:PATH@REF")


class MissingSubmodule(UpstreamUnavailable, InputError):
    """A path leads into a submodule whose repository was not given.

    It is both an `UpstreamUnavailable`, for callers that report "not here", and an `InputError`.
    """

    def __init__(self, path: str, submodule: Submodule) -> None:
        problem = (
            f"is in the submodule {submodule.path}, pinned at {submodule.commit} of "
            f"{submodule.repo}"
        )
        remedy = f"give it with --upstream {submodule.repo}=git:PATH"
        InputError.__init__(self, path, None, problem, remedy)


def submodule_urls(text: str) -> Mapping[str, str]:
    """Return the URL of each submodule by path, without submodules that lack either.

    git's own parser is not used because it would follow an ``include`` of another file.
    """
    modules: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for line in re.sub(r"\\\r?\n", "", text.removeprefix("\ufeff")).splitlines():
        section = _SECTION.match(line) or _OTHER_SECTION.match(line)
        if section is not None:
            named = section.re is _SECTION
            current = modules.setdefault(section[1], {}) if named else None
            line = line[section.end() :]
        variable = _VARIABLE.match(line)
        if variable is not None and current is not None:
            current[variable[1].lower()] = _value(variable[2])
    found = {
        module["path"].rstrip("/"): module["url"]
        for module in modules.values()
        if module.get("path") and module.get("url")
    }
    return MappingProxyType(found)


def _value(text: str) -> str:
    """Return a value without quotes, escapes and trailing comment."""
    found: list[str] = []
    kept = 0  # white space before this was in quotes
    quoted = escaped = False
    for letter in text:
        if escaped:
            found.append({"n": "\n", "t": "\t", "b": "\b"}.get(letter, letter))
            kept = len(found)
        elif letter == '"':
            quoted = not quoted
            kept = len(found)
        elif letter in "#;" and not quoted:
            break
        elif letter != "\\":
            found.append(letter)
        escaped = letter == "\\" and not escaped
    return "".join(found[:kept]) + "".join(found[kept:]).rstrip()


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
