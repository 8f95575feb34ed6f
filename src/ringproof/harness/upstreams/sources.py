"""Opens the default tree of an upstream of a card."""

from __future__ import annotations

from pathlib import Path

from ringproof.harness.cards.model import PackageUpstream, RepositoryUpstream
from ringproof.harness.upstreams.releases import open_release
from ringproof.harness.upstreams.tree import UpstreamTree, UpstreamUnavailable


def open_upstream(
    upstream: PackageUpstream | RepositoryUpstream, *, cache: Path, offline: bool
) -> UpstreamTree:
    """Open the tree of one upstream.

    Args:
        cache: Folder of downloads.
        offline: Whether to use the cache only.

    Raises:
        UpstreamUnavailable: It is not available here. Repositories are never downloaded in this
            version.
        UpstreamError: It cannot be used because of its hash or a broken archive.
        InputError: The index does not have the release.
    """
    if isinstance(upstream, RepositoryUpstream):
        raise UpstreamUnavailable(f"needs a checkout of {upstream.repo} at {upstream.commit[:12]}")
    return open_release(
        upstream.package,
        upstream.version,
        cache=cache,
        accepted=upstream.file_sha256,
        offline=offline,
    )
