"""Which language a file is written in."""

from __future__ import annotations

from ringproof.harness.anchors.native.language import NATIVE_ENDINGS, Native
from ringproof.harness.anchors.protocol import Language
from ringproof.harness.anchors.python import Python

PYTHON_ENDING = ".py"


def language_of(path: str) -> Language:
    """The language of an anchor's file: C++ and CUDA by their endings, Python otherwise."""
    return Native() if path.endswith(NATIVE_ENDINGS) else Python()


def has_symbols(path: str) -> bool:
    """Whether symbols are sought in a file that no anchor names."""
    return path.endswith((PYTHON_ENDING, *NATIVE_ENDINGS))
