"""Names that a user gives: of backends, and of how much of a model is captured. No torch."""

from __future__ import annotations

from types import MappingProxyType

DEVICES = MappingProxyType({"cuda": "cuda", "transformer-engine": "cuda", "tape": "cpu"})
"""Name of a backend to the type of device that it works on."""

NAMES = ("auto", *DEVICES)

SCOPES = ("layer", "attn", "router")
"""What one graph holds; see ``scopes``."""

OVERFLOWS = ("error", "eager")
"""What becomes of a microbatch that no graph can take."""
