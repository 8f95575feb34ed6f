"""From an upstream named in a card to a tree of its files."""

from __future__ import annotations

from pathlib import Path

from ringproof.harness.cards.model import PackageUpstream, RepositoryUpstream
from ringproof.harness.upstreams.releases import open_release
from ringproof.harness.upstreams.tree import UpstreamTree, UpstreamUnavailable


def open_upstream(
    upstream: PackageUpstream | RepositoryUpstream, *, cache: Path, offline: bool
) -> UpstreamTree:
    """The tree of one upstream.

    Args:
        cache: Where downloads are kept.
        offline: Use the cache only.

    Raises:
        UpstreamUnavailable: It cannot be had here; repositories cannot, in this version.
        UpstreamError: It is unusable (hash, broken archive).
        InputError: The index knows no such release.
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
