"""What a reader of one format hands on, and how numbers are taken from text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ringproof.harness.logs.training.columns import Columns
from ringproof.harness.logs.training.series import SeriesBuilder

MAX_STEP = 1 << 60


@dataclass
class Reading:
    """A log while it is read.

    Attributes:
        builders: One for each wanted series.
        notes: What the reader of the verdict should know.
        seen: Names of quantities in the file, for messages.
        records: Lines that held a step; ``damaged`` those that should have and could not be read.
        exact: Values were written with all their digits, by contract.
        averaged: The loss is a mean over the steps since the line before.
    """

    builders: dict[str, SeriesBuilder]
    notes: list[str] = field(default_factory=list)
    seen: dict[str, None] = field(default_factory=dict)
    records: int = 0
    damaged: int = 0
    first_damaged: int = 0
    exact: bool = False
    averaged: bool = False

    @classmethod
    def of(cls, columns: Columns) -> Reading:
        """An empty reading for what is wanted."""
        return cls({name: SeriesBuilder(name) for name in columns.series})

    def see(self, names: Iterable[str]) -> None:
        """Remember names, a bounded number of them."""
        if len(self.seen) < 1000:
            self.seen.update(dict.fromkeys(names))

    def damage(self, number: int) -> None:
        """Line ``number`` (from 1) is broken."""
        self.damaged += 1
        self.first_damaged = self.first_damaged or number


def step_number(value: object) -> int | None:
    """A step: a whole number from 0, also where it is written as ``10.0`` or as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str | bytes):
        value = number(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < MAX_STEP else None


def number(value: object) -> float | None:
    """A float from what JSON or text may hold, ``None`` if it is no number.

    JSON's ``null`` is not a number, because writers that obey the standard put it for NaN.
    """
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float | str | bytes):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
