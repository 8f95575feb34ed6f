"""Releases on the package index as upstreams: the wheel, or otherwise the source archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

from ringproof.errors import InputError
from ringproof.harness.upstreams.archives import Archive, cached
from ringproof.harness.upstreams.sdists import SdistSource
from ringproof.harness.upstreams.sdisttree import SdistTree
from ringproof.harness.upstreams.tree import (
    UpstreamError,
    UpstreamTree,
    UpstreamUnavailable,
    WheelTree,
)
from ringproof.harness.upstreams.wheels import download_wheels


def open_release(
    package: str, version: str, *, cache: Path, accepted: tuple[str, ...] = (), offline: bool
) -> UpstreamTree:
    """Open the files of a release; raises like `fetch_release`.

    Raises:
        UpstreamError: The archive cannot be read.
    """
    archive = fetch_release(package, version, cache=cache, accepted=accepted, offline=offline)
    kind = WheelTree if archive.is_wheel else SdistTree
    return kind(archive.path, f"pip:{package}=={version}", archive.sha256)


def fetch_release(
    package: str, version: str, *, cache: Path, accepted: tuple[str, ...] = (), offline: bool
) -> Archive:
    """Return the wheel or source archive of ``package==version`` from the cache or the index.

    Args:
        accepted: Accepted SHA-256 values of either kind of file; any if empty.
        offline: Whether to use the cache only.

    Raises:
        UpstreamUnavailable: It is not in the cache and cannot be downloaded from here.
        UpstreamError: No file has an accepted hash, or a file does not have the hash of the index.
        InputError: The index does not have the release.
    """
    wanted = f"{package}=={version}"
    folder = cache / canonicalize_name(package) / version
    others: set[str] = set()
    for archive in _archives(package, version, folder, accepted, others, offline):
        if not accepted or archive.sha256 in accepted:
            return archive
        others.add(archive.sha256)
    if offline:
        raise UpstreamUnavailable(f"{wanted} is not in the cache, and this is offline")
    if not others:
        problem = "the package index has no such release, as wheel or source archive"
        raise InputError("upstreams", wanted, problem, "correct the package or its version")
    found = ", ".join(sorted(others))
    raise UpstreamError(f"{wanted} has SHA-256 {found}, not what the card says")


def _archives(
    package: str,
    version: str,
    folder: Path,
    accepted: tuple[str, ...],
    others: set[str],
    offline: bool,
) -> Iterator[Archive]:
    """Yield candidates, best first, and add hashes of other files to ``others``."""
    yield from cached(folder)
    if offline:
        return
    yield from download_wheels(f"{package}=={version}", folder)
    source = SdistSource(package, version)
    for file in source.files():
        if accepted and file.sha256 is not None and file.sha256 not in accepted:
            others.add(file.sha256)
            continue
        archive = source.download(file, folder)
        if archive is not None:
            yield archive
