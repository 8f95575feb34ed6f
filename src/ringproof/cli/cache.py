"""Where downloads are kept."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """Where downloaded wheels are kept unless the user says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "ringproof" / "wheels"
