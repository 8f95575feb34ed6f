"""Runs pip and reads its settings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_INDEX = "https://pypi.org/simple"
"""Default index of pip."""

_SECTIONS = ("global", "download", ":env:")
_LINE = re.compile(r"(?P<section>[^=\s]+?)\.(?P<key>[a-z-]+)=(?P<value>['\"].*)")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")


@dataclass(frozen=True)
class PipSettings:
    """Places and connection settings of pip.

    Attributes:
        indexes: Simple indexes, the main one first; empty with ``no-index``.
        find_links: Folders, files and pages with links.
        cert: File or folder of certificates instead of the system's.
        client_cert: Client certificate with its key.
        proxy: Proxy for http and https instead of the environment's.
        trusted: Hosts (``host`` or ``host:port``) whose certificate is not checked.
    """

    indexes: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trusted: frozenset[str] = frozenset()


def pip_settings() -> PipSettings:
    """Return the settings from pip's configuration files and ``PIP_*`` variables."""
    _, listed = run_pip(["config", "list"], timeout=60)
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listed.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None and match["section"] in found:
            found[match["section"]][match["key"]] = _text(match["value"])
    values = {key: value for section in _SECTIONS for key, value in found[section].items()}
    alone = values.get("no-index", "").strip().lower() in ("1", "true", "yes", "on", "t", "y")
    indexes = [values.get("index-url") or DEFAULT_INDEX, *values.get("extra-index-url", "").split()]
    return PipSettings(
        indexes=() if alone else tuple(dict.fromkeys(indexes)),
        find_links=tuple(values.get("find-links", "").split()),
        cert=values.get("cert") or None,
        client_cert=values.get("client-cert") or None,
        proxy=values.get("proxy") or None,
        trusted=frozenset(values.get("trusted-host", "").split()),
    )


def _text(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal))
    except (SyntaxError, ValueError):
        return ""


def run_pip(arguments: Sequence[str], *, timeout: float = 600) -> tuple[bool, str]:
    """Run pip and return whether it failed, and its output. ``timeout`` is in seconds."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True, f"ERROR: pip did not finish within {timeout:g} s"
    return done.returncode != 0, done.stdout


def without_credentials(text: str) -> str:
    """Remove user and password from the URLs in a message."""
    return _CREDENTIALS.sub("", text)
