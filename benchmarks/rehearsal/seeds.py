"""Other weights than those of every rehearsal, put in place in each rank as a defect is planted."""

from __future__ import annotations

from typing import Any


def second() -> None:
    """Draw the weights of a second seed."""
    _draw("second")


def third() -> None:
    """Draw the weights of a third seed."""
    _draw("third")


def _draw(seed: str) -> None:
    from ringproof.rehearsal.rank import weights

    drawn = weights._local

    def local(part: Any, kind: str = "") -> Any:
        return drawn(part, kind + seed)

    weights._local = local
