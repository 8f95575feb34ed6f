"""References to upstream code: anchors of cards by symbol, and quotations in documents by line."""

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
