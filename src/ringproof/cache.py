"""The folder in which all commands keep what they downloaded and unpacked."""

from __future__ import annotations

import os
from pathlib import Path

from ringproof.errors import InputError


def default_cache() -> Path:
    """Return the folder of wheels, repositories and unpacked trees that all commands share.

    Raises:
        InputError: This user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "ringproof"
    except RuntimeError as error:
        sentence = "this user has no home folder; set XDG_CACHE_HOME to a folder for downloads"
        raise InputError("--cache", sentence) from error
