"""Names of backends and scopes that a user gives, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from ringproof.errors import InputError, check_name

DEVICES = MappingProxyType({"cuda": "cuda", "tape": "cpu"})
"""Type of device of each backend."""

NAMES = ("auto", *DEVICES)

SCOPES = ("layer", "attn", "router")
"""Part of a layer that one graph captures; see ``scopes``."""

OVERFLOWS = ("error", "eager")


def check_scope(feed_forwards: Sequence[str | None], scope: str, *, recompute: bool) -> None:
    """Refuse a scope that the layers do not allow.

    With ``recompute``, layers run their forward again in the backward. A graph of a part of such a
    layer would be replayed twice for one backward.

    Raises:
        InputError: The scope is unknown or not allowed. The message has the first such layer.
    """
    check_name("graph_scope", scope, SCOPES)
    if scope == "layer" and "experts" in feed_forwards:
        problem = f"layer {feed_forwards.index('experts')} has experts, whose dispatch reads back"
        raise InputError("graph_scope", f"{problem}; use attn or router")
    if scope != "layer" and recompute:
        problem = f"{scope} would be replayed twice where whole layers are computed again"
        raise InputError("graph_scope", f"{problem}; use layer, or do not recompute")
