"""Anchors: references to upstream code by symbol instead of by line number."""

from ringproof.anchors.resolve import AnchorResolver, AnchorStatus, Resolution
from ringproof.upstream.tree import UpstreamError, UpstreamTree, UpstreamUnavailable

__all__ = (
    "AnchorResolver",
    "AnchorStatus",
    "Resolution",
    "UpstreamError",
    "UpstreamTree",
    "UpstreamUnavailable",
)
