"""What to type so that a package which a command needs is installed."""

from __future__ import annotations

import importlib.util

ON_INDEX = False
"""Whether ``pip install ringproof`` finds this project. It is on no package index yet."""
CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""Installs torch without CUDA, which the package index has for Linux only with it: gigabytes."""
WITH_TORCH = frozenset({"prove", "reference", "rehearsal"})
"""Extras that bring torch."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of this project, for the end of a message.

    >>> how_to_install("plan")
    "run: pip install '.[plan]' in a checkout of ringproof"
    """
    command = f"pip install '.[{extra}]' in a checkout of ringproof"
    if ON_INDEX:
        command = f"pip install 'ringproof[{extra}]'"
    if extra in WITH_TORCH and importlib.util.find_spec("torch") is None:
        return f"without a GPU run first: {CPU_TORCH}; then run: {command}"
    return f"run: {command}"
