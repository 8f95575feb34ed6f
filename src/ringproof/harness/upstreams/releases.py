"""A release on the package index as an upstream: its wheel, or else its source archive."""

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
    """The files of a release; raises like `fetch_release`.

    Raises:
        UpstreamError: Also for an archive that cannot be read.
    """
    archive = fetch_release(package, version, cache=cache, accepted=accepted, offline=offline)
    kind = WheelTree if archive.is_wheel else SdistTree
    return kind(archive.path, f"pip:{package}=={version}", archive.sha256)


def fetch_release(
    package: str, version: str, *, cache: Path, accepted: tuple[str, ...] = (), offline: bool
) -> Archive:
    """The wheel of ``package==version`` or else its source archive, from the cache or downloaded.

    Args:
        accepted: The only SHA-256 values taken, of either kind of file; any when empty.
        offline: Never start a download.

    Raises:
        UpstreamUnavailable: Not in the cache, and not to be had from here.
        UpstreamError: There is one, but none with an accepted hash, or it is not as the index
            says.
        InputError: The index is reachable and knows no such release.
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
    """What may do, best first; hashes that the index gives for others are added to ``others``."""
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
