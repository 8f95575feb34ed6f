"""Releases on the package index as upstreams: their wheels, which pip downloads into a cache.

Only wheels are downloaded, because pip would run the build code of a source archive. A release
without a wheel is read from a checkout of its repository. The cache has the SHA-256 of each wheel
beside it, as it was when it was downloaded.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from ringproof.errors import InputError
from ringproof.files import make_folder, read_bounded
from ringproof.programs import MERGED, python, run
from ringproof.upstream.tree import UpstreamError, UpstreamUnavailable, WheelTree

# Anchors need only source text, so a wheel for another Python version is accepted.
_FALLBACK_PYTHONS = ("3.11", "3.12", "3.13")
_FALLBACK_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64")
_DOWNLOAD = (
    *("download", "--no-deps", "--only-binary=:all:", "--no-input"),
    *("--progress-bar", "off", "--retries", "1"),
)
_PIP_SECONDS = 600
_PATIENCE = 30.0
INDEX_UNREACHABLE = "the package index cannot be reached"
_UNREACHABLE = re.compile(
    r"Retrying|NewConnectionError|ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|Temporary failure in name resolution|Network is unreachable|Could not fetch URL"
)
_NO_MATCH = "No matching distribution found"
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_MAX_RECORD = 1_000


@dataclass(frozen=True)
class Archive:
    """A wheel in the cache, and its hash."""

    path: Path
    sha256: str


class DamagedWheel(InputError):
    """A wheel in the cache that is not what was downloaded, and is not used.

    Args:
        failure: Why it could not be downloaded again, if that was tried.
    """

    def __init__(self, path: Path, flaw: str, failure: str = "") -> None:
        self.path = path
        self.flaw = flaw
        problem = f"the wheel {path} is damaged: {flaw}"
        remedy = "run `ringproof upstream fetch --wheels`, or remove it to have it downloaded again"
        if failure:
            problem += f"; downloading it again failed: {failure}"
            remedy = "check the network and pip's settings, or remove the wheel"
        super().__init__("--cache", f"{problem}; {remedy}")


@dataclass(frozen=True)
class Release:
    """A release on the package index.

    Attributes:
        sha256: SHA-256 values of its wheels that may be used; any if empty.
    """

    package: str
    version: str
    sha256: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def spec(self) -> str:
        """The release as ``pip:PACKAGE==VERSION``."""
        return f"pip:{self}"

    def folder(self, cache: Path) -> Path:
        """Return the folder for its wheels."""
        return cache / canonicalize_name(self.package) / self.version

    def cached(self, cache: Path) -> Archive | DamagedWheel | None:
        """Return the cached wheel whose hash is accepted, or else one that is damaged."""
        damaged = None
        for wheel in self._wheels(cache):
            if isinstance(wheel, DamagedWheel):
                damaged = damaged or wheel
            elif self._accepts(wheel):
                return wheel
        return damaged

    def fetch(
        self, cache: Path, *, offline: bool, patience: float = _PATIENCE, mend: bool = False
    ) -> Archive:
        """Return the wheel from the cache or the index.

        Args:
            offline: Whether to use the cache only.
            patience: Seconds after which pip gives up on an index that does not answer.
            mend: Whether to download a wheel again that is damaged in the cache.

        Raises:
            DamagedWheel: It is in the cache and damaged, and is not to be mended.
            UpstreamUnavailable: It is not in the cache and cannot be downloaded from here.
            UpstreamError: No wheel has an accepted hash.
            InputError: The index has no wheel of the release.
        """
        kept = self.cached(cache)
        if isinstance(kept, Archive):
            return kept
        if kept is not None and not mend:
            raise kept
        if offline:
            names = (one.path.name for one in self._wheels(cache) if isinstance(one, Archive))
            but = "".join(f" ({name} has another hash)" for name in names)
            raise UpstreamUnavailable(f"{self} is not in the cache{but}, and this is offline")
        others = set()
        for archive in download_wheels(str(self), self.folder(cache), patience):
            if self._accepts(archive):
                return archive
            others.add(archive.sha256)
        if not others:
            problem = "the package index has no wheel"
            remedy = "correct the package or its version, or read it from a clone with git:PATH@REF"
            raise InputError("upstreams", f"{problem} as {self}; {remedy}")
        hashes = ", ".join(sorted(others))
        raise UpstreamError(f"{self} has SHA-256 {hashes}, not what the card says")

    def open(self, cache: Path, *, offline: bool) -> WheelTree:
        """Open the files of its wheel; raises like `fetch`."""
        archive = self.fetch(cache, offline=offline)
        return WheelTree(archive.path, self.spec, archive.sha256)

    def _accepts(self, wheel: Archive) -> bool:
        return not self.sha256 or wheel.sha256 in self.sha256

    def _wheels(self, cache: Path) -> Iterator[Archive | DamagedWheel]:
        for path in sorted(self.folder(cache).glob("*.whl")):
            try:
                yield examined(path)
            except DamagedWheel as damage:
                yield damage


def examined(path: Path) -> Archive:
    """Return a wheel of the cache with its hash.

    Raises:
        DamagedWheel: It is no zip file, or its hash is not the recorded one.
    """
    if not path.is_file():
        raise DamagedWheel(path, "it is not a regular file")
    record = path.with_name(f"{path.name}.sha256")
    try:
        digest = sha256_of(path)
        known = read_bounded(record, _MAX_RECORD) if record.is_file() else b""
    except OSError as error:
        raise DamagedWheel(path, f"it cannot be read: {error.strerror}") from error
    if not known:
        raise DamagedWheel(path, "its SHA-256 is not recorded beside it")
    if known.decode("ascii", "replace").strip() != digest:
        raise DamagedWheel(path, "its SHA-256 is not the recorded one")
    try:
        zipfile.ZipFile(path).close()
    except zipfile.BadZipFile as error:
        raise DamagedWheel(path, "it is not a readable zip file") from error
    return Archive(path, digest)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download_wheels(wanted: str, folder: Path, patience: float = _PATIENCE) -> Iterator[Archive]:
    """Yield the wheels of ``PACKAGE==VERSION`` for this Python and others, one download at a time.

    Raises:
        UpstreamUnavailable: The index cannot be reached.
    """
    make_folder(folder, field="--cache")
    for version in (None, *_FALLBACK_PYTHONS):
        wheel = _download(wanted, folder, version, patience)
        if wheel is not None:
            yield wheel


def _download(wanted: str, folder: Path, version: str | None, patience: float) -> Archive | None:
    """Run pip once; return ``None`` if the index has no wheel for this Python."""
    arguments = [*_DOWNLOAD, "--timeout", f"{patience:.0f}"]
    if version is not None:
        arguments += ["--python-version", version]
        for platform in _FALLBACK_PLATFORMS:
            arguments += ["--platform", platform]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        failed, log = _run_pip([*arguments, "--dest", scratch, wanted])
        if not failed:
            return _keep(next(Path(scratch).glob("*.whl")), folder)
    if _NO_MATCH in log and not _UNREACHABLE.search(log):
        return None
    raise UpstreamUnavailable(f"pip could not download {wanted}: {_reason(log)}")


def _keep(download: Path, folder: Path) -> Archive:
    """Move a downloaded file into the cache, after its hash, so that no file is without a hash."""
    digest = sha256_of(download)
    record = download.with_name(f"{download.name}.sha256")
    record.write_text(f"{digest}\n", "ascii")
    record.replace(folder / record.name)
    return Archive(download.replace(folder / download.name), digest)


def _run_pip(arguments: Sequence[str]) -> tuple[bool, str]:
    """Run pip and return whether it failed, and its output."""
    command = [*python(module="pip"), "--disable-pip-version-check", *arguments]
    ended = run(command, seconds=_PIP_SECONDS, stderr=MERGED)
    if ended.code is None:
        return True, f"ERROR: pip did not finish within {_PIP_SECONDS} s"
    return ended.code != 0, ended.out


def _reason(log: str) -> str:
    """Return pip's last error, or the end of its traceback, on one line and without passwords."""
    failures = _UNREACHABLE.findall(log)
    if failures:
        named = [name for name in failures if name.endswith(("Error", "Timeout", "unreachable"))]
        return " ".join([INDEX_UNREACHABLE, *(f"({n})" for n in named[:1])])
    lines = log.splitlines() or ["no message"]
    errors = [line for line in lines if line.startswith("ERROR") and line != "ERROR: Exception:"]
    return _CREDENTIALS.sub("", " ".join((errors or lines)[-1].split()))[:200]
