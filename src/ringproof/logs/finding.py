"""What the readers of logs find."""

from __future__ import annotations

from typing import NamedTuple


class RunFinding(NamedTuple):
    """Something that speaks against a run: its kind, and a sentence."""

    code: str
    text: str
