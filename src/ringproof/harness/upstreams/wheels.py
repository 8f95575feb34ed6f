"""Downloads wheels from the package index with pip.

Only wheels are downloaded here, because pip would run the build code of a source archive to get its
metadata. `sdists` downloads source archives.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ringproof.harness.upstreams.archives import Archive, keep, make_folder
from ringproof.harness.upstreams.pip import run_pip, without_credentials
from ringproof.harness.upstreams.tree import UpstreamUnavailable

# Anchors need only source text, so a wheel for another Python version is accepted.
_FALLBACK_PYTHONS = ("3.11", "3.12", "3.13")
_FALLBACK_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64")
_UNREACHABLE = re.compile(
    r"Retrying|NewConnectionError|ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|Temporary failure in name resolution|Network is unreachable|Could not fetch URL"
)
_NO_MATCH = "No matching distribution found"


def download_wheels(wanted: str, folder: Path) -> Iterator[Archive]:
    """Yield the wheels of ``PACKAGE==VERSION`` for this Python and others, one download at a time.

    Args:
        folder: Folder of the downloads.

    Raises:
        UpstreamUnavailable: The index cannot be reached.
        InputError: The folder cannot be created.
    """
    make_folder(folder)
    for python in (None, *_FALLBACK_PYTHONS):
        wheel = _download(wanted, folder, python)
        if wheel is not None:
            yield wheel


def _download(wanted: str, folder: Path, python: str | None) -> Archive | None:
    """Run pip once; return ``None`` if the index has no wheel for this Python."""
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--no-input"]
    arguments += ["--progress-bar", "off", "--timeout", "30", "--retries", "1"]
    if python is not None:
        arguments += ["--python-version", python]
        for platform in _FALLBACK_PLATFORMS:
            arguments += ["--platform", platform]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        failed, log = run_pip([*arguments, "--dest", scratch, wanted])
        wheels = sorted(Path(scratch).glob("*.whl"))
        if not failed and wheels:
            return keep(wheels[0], folder)
    log = log if failed else "pip reported success and left no wheel"
    if _NO_MATCH in log and not _UNREACHABLE.search(log):
        return None
    raise UpstreamUnavailable(f"pip could not download {wanted}: {_reason(log)}")


def _reason(log: str) -> str:
    """Return pip's last error, or the end of its traceback, on one line."""
    failures = _UNREACHABLE.findall(log)
    if failures:
        named = [name for name in failures if name.endswith(("Error", "Timeout", "unreachable"))]
        return " ".join(["the package index cannot be reached", *(f"({n})" for n in named[:1])])
    lines = log.splitlines() or ["no message"]
    errors = [line for line in lines if line.startswith("ERROR") and line != "ERROR: Exception:"]
    return without_credentials(" ".join((errors or lines)[-1].split()))[:200]
