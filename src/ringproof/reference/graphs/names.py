"""Names that a user gives: of backends, and of how much of a model is captured. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from ringproof.errors import InputError

DEVICES = MappingProxyType({"cuda": "cuda", "transformer-engine": "cuda", "tape": "cpu"})
"""Name of a backend to the type of device that it works on."""

NAMES = ("auto", *DEVICES)

SCOPES = ("layer", "attn", "router")
"""What one graph holds; see ``scopes``."""

OVERFLOWS = ("error", "eager")
"""What becomes of a microbatch that no graph can take."""


def check_scope(feed_forwards: Sequence[str | None], scope: str, *, recompute: bool) -> None:
    """Refuse a scope that the layers do not allow, by the place of the first that does not.

    Args:
        feed_forwards: Of each layer.
        scope: One of :data:`SCOPES`.
        recompute: Whether layers are computed again in their backward. A graph of a part of one
            would be replayed twice for one backward.

    Raises:
        InputError: See above.
    """
    if scope not in SCOPES:
        raise InputError("graph_scope", scope, "unknown", f"use one of {', '.join(SCOPES)}")
    if scope == "layer" and "experts" in feed_forwards:
        problem = f"layer {feed_forwards.index('experts')} has experts, whose dispatch reads back"
        raise InputError("graph_scope", scope, problem, "use attn or router")
    if scope != "layer" and recompute:
        problem = "whole layers are computed again"
        raise InputError("graph_scope", scope, problem, "use layer, or do not recompute")
