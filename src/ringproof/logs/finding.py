"""What the readers of logs find."""

from __future__ import annotations

from typing import NamedTuple


class RunFinding(NamedTuple):
    """Something that speaks against a run: its kind, a sentence, and the step where it was seen."""

    code: str
    text: str
    step: int = 0
