"""``numpy.typing`` beside `arrays`."""

from __future__ import annotations

NDArray = list
"""Only written behind colons and subscripted; never called."""
