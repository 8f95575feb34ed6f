"""How a script of ours, run in the place of a training program, hands values to its caller."""

from __future__ import annotations

import sys
import types
from typing import Any

MODULE = "ringproof_results"


class Results:
    """What one rank hands over.

    Attributes:
        value: Anything that JSON can hold.
    """

    value: Any = None


def open_for(results: Results) -> None:
    """Let `hand_over` in this process write into ``results``."""
    module = types.ModuleType(MODULE)
    module.results = results  # type: ignore[attr-defined]
    sys.modules[MODULE] = module


def hand_over(value: Any) -> None:
    """Hand a value over to the caller of the run; the last one counts."""
    sys.modules[MODULE].results.value = value
