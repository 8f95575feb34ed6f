"""From an upstream named in a card to a tree of its files."""

from __future__ import annotations

from pathlib import Path

from ringproof.harness.anchors.tree import UpstreamTree, UpstreamUnavailable, WheelTree
from ringproof.harness.anchors.wheels import fetch_wheel
from ringproof.harness.cards.model import PackageUpstream, RepositoryUpstream


def open_upstream(
    upstream: PackageUpstream | RepositoryUpstream, *, cache: Path, offline: bool
) -> UpstreamTree:
    """The tree of one upstream.

    Args:
        cache: Where downloaded wheels are kept.
        offline: Use the cache only.

    Raises:
        UpstreamUnavailable: It cannot be had here; repositories cannot, in this version.
        UpstreamError: It is unusable (hash, broken archive).
        InputError: The index knows no such release.
    """
    if isinstance(upstream, RepositoryUpstream):
        raise UpstreamUnavailable(f"needs a checkout of {upstream.repo} at {upstream.commit[:12]}")
    wheel = fetch_wheel(
        upstream.package,
        upstream.version,
        cache=cache,
        accepted=upstream.wheel_sha256,
        offline=offline,
    )
    origin = f"pip:{upstream.package}=={upstream.version}"
    return WheelTree(wheel.path, origin, wheel.sha256)
