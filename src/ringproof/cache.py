"""The folder in which all commands keep what they downloaded and unpacked."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """Return the folder of wheels, repositories and unpacked trees that all commands share."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "ringproof"
