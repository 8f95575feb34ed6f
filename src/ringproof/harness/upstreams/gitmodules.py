"""Reads ``.gitmodules``: the path of each submodule, and the repository of its URL."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

MAX_BYTES = 500_000
"""Largest size of the file, far above that of real ones."""

_SECTION = re.compile(r'\s*\[\s*submodule\s+"((?:[^"\\]|\\.)*)"\s*\]', re.IGNORECASE)
_OTHER_SECTION = re.compile(r"\s*\[[^\]]*\]")
_VARIABLE = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")
_SCP = re.compile(r"(?:[^@/\s]+@)?[^/:\s]{2,}:(?!//)(.+)")  # git@host:OWNER/NAME.git
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+")


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
