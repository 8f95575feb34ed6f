"""Wheels from the package index, through pip, into a cache that is checked by hash.

Only wheels: pip would run the build code of a source archive to learn its metadata, and nothing
that a card names is ever executed.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError
from ringproof.harness.anchors.tree import UpstreamError, UpstreamUnavailable

# Anchors need Python sources only, so a wheel for another Python will do when there is none here.
_FALLBACK_PYTHONS = ("3.11", "3.12", "3.13")
_FALLBACK_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64")
_UNREACHABLE = re.compile(
    r"Retrying|NewConnectionError|ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|Temporary failure in name resolution|Network is unreachable|Could not fetch URL"
)
_NO_MATCH = "No matching distribution found"


@dataclass(frozen=True)
class Wheel:
    """A wheel in the cache and its hash."""

    path: Path
    sha256: str


def fetch_wheel(
    package: str, version: str, *, cache: Path, accepted: tuple[str, ...] = (), offline: bool
) -> Wheel:
    """The wheel of ``package==version``, from the cache or else downloaded into it.

    Args:
        accepted: The only SHA-256 values taken; any when empty.
        offline: Never start a download.

    Raises:
        UpstreamUnavailable: Not in the cache, and not to be had from here.
        UpstreamError: There is one, but none with an accepted hash.
        InputError: The index is reachable and knows no such wheel.
    """
    name = re.sub(r"[-_.]+", "-", package).lower()
    folder = cache / name / version
    seen = tuple(_cached(folder))
    for wheel in seen:
        if not accepted or wheel.sha256 in accepted:
            return wheel
    wanted = f"{package}=={version}"
    if offline:
        raise UpstreamUnavailable(f"the wheel of {wanted} is not in the cache, and this is offline")
    for python in (None, *_FALLBACK_PYTHONS):
        downloaded = _download(wanted, folder, python)
        if downloaded is not None and (not accepted or downloaded.sha256 in accepted):
            return downloaded
        seen += () if downloaded is None else (downloaded,)
    if not seen:
        problem = "the package index has no wheel of this release"
        raise InputError("upstreams", wanted, problem, "correct the package or its version")
    found = ", ".join(sorted({wheel.sha256 for wheel in seen}))
    raise UpstreamError(f"the wheel of {wanted} has SHA-256 {found}, not what the card says")


def _cached(folder: Path) -> list[Wheel]:
    """The wheels of one release whose content still has the hash recorded at download."""
    wheels = []
    for path in sorted(folder.glob("*.whl")):
        record = path.with_name(f"{path.name}.sha256")
        actual = _sha256(path)
        if record.is_file() and record.read_text("ascii", "replace").strip() == actual:
            wheels.append(Wheel(path, actual))
    return wheels


def _download(wanted: str, folder: Path, python: str | None) -> Wheel | None:
    """One pip run; ``None`` when the index has no wheel for this Python."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be created: {error.strerror}"
        raise InputError("--cache", folder, problem, "name a writable folder") from error
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        failure = _run_pip(wanted, Path(scratch), python)
        wheels = sorted(Path(scratch).glob("*.whl"))
        if failure is None and wheels:
            return _keep(wheels[0], folder)
    log = failure or "pip reported success and left no wheel"
    if _NO_MATCH in log and not _UNREACHABLE.search(log):
        return None
    lines = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines()
    reason = " ".join((lines or ["no message"])[-1].split())[:200]
    raise UpstreamUnavailable(f"pip could not download {wanted}: {reason}")


def _keep(wheel: Path, folder: Path) -> Wheel:
    """Move a downloaded wheel into the cache, its hash first: half a pair is not used."""
    digest = _sha256(wheel)
    record = wheel.with_name(f"{wheel.name}.sha256")
    record.write_text(f"{digest}\n", "ascii")
    record.replace(folder / record.name)
    return Wheel(wheel.replace(folder / wheel.name), digest)


def _run_pip(wanted: str, scratch: Path, python: str | None) -> str | None:
    """Run ``pip download``; what it wrote when it failed, ``None`` when it succeeded."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--timeout", "30", "--retries", "1", "--dest", str(scratch)]
    if python is not None:
        command += ["--python-version", python]
        for platform in _FALLBACK_PLATFORMS:
            command += ["--platform", platform]
    try:
        done = subprocess.run(
            [*command, wanted],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=600,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "ERROR: pip did not finish within 600 s"
    return None if done.returncode == 0 else done.stdout


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
