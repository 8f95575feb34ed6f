"""Chooses the language of a file."""

from __future__ import annotations

from ringproof.harness.anchors.native.language import NATIVE_ENDINGS, Native
from ringproof.harness.anchors.protocol import Language
from ringproof.harness.anchors.python import Python

PYTHON_ENDING = ".py"


def language_of(path: str) -> Language:
    """Return the language of an anchor's file: C++ or CUDA by suffix, otherwise Python."""
    return Native() if path.endswith(NATIVE_ENDINGS) else Python()


def has_symbols(path: str) -> bool:
    """Return whether symbols are searched in a file that no anchor names."""
    return path.endswith((PYTHON_ENDING, *NATIVE_ENDINGS))
