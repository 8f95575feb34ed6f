"""The values of one quantity by step, and how finely a log prints them."""

from __future__ import annotations

import itertools
import math
import operator
from array import array
from collections import Counter
from dataclasses import dataclass, field

EXACT_DIGITS = 15
"""A decimal number with this many significant digits names one float64, near enough."""


@dataclass(frozen=True)
class Precision:
    """How finely a log prints a value: as fixed ``decimals`` or as ``significant`` digits.

    With neither, the log is taken at its word: JSON and CSV may hold any number of digits.
    """

    decimals: int | None = None
    significant: int | None = None

    @property
    def rounded(self) -> bool:
        """Whether values are known to be rounded for print."""
        return self.decimals is not None or self.significant is not None

    def unit(self, value: float) -> float:
        """One unit in the last printed place of ``value``; 0 where nothing is rounded.

        >>> Precision(significant=7).unit(1.234567), Precision(decimals=3).unit(20.0)
        (1e-06, 0.001)
        """
        if self.decimals is not None:
            return 10.0**-self.decimals
        if self.significant is None or value == 0 or not math.isfinite(value):
            return 0.0
        return 10.0 ** (math.floor(math.log10(abs(value))) - self.significant + 1)


def printed_precision(text: str) -> Precision:
    """The precision of a number as printed.

    >>> printed_precision("1.234567E+00"), printed_precision("0.123")
    (Precision(decimals=None, significant=7), Precision(decimals=3, significant=None))
    """
    mantissa, exponent, _ = text.strip().lower().partition("e")
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    if not (whole + fraction).isdigit():
        return Precision()
    if exponent:
        return Precision(significant=len(whole) + len(fraction))
    return Precision(decimals=len(fraction))


@dataclass
class Series:
    """The values of one quantity of one run, in the order of the file until `settle`.

    Attributes:
        name: As it is compared: ``loss``; ``column`` is what the file calls it.
        repeated: Steps that stood more than once (the run was restarted): the later one counts.
        changed: How many of them with another value than before.
    """

    name: str
    column: str
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    repeated: int = 0
    changed: int = 0
    first_repeated: int | None = None
    precision: Precision = Precision()

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: int, value: float) -> None:
        """Append the next value of the file."""
        self.steps.append(step)
        self.values.append(value)

    def settle(self) -> None:
        """Order by step; of steps that stand more than once the later one counts."""
        later = itertools.islice(self.steps, 1, None)
        if all(map(operator.lt, self.steps, later)):
            return
        latest: dict[int, float] = {}
        repeated: set[int] = set()
        changed: set[int] = set()
        for step, value in zip(self.steps, self.values, strict=True):
            if step in latest:
                repeated.add(step)
                if value != latest[step]:
                    changed.add(step)
            latest[step] = value
        self.steps = array("q", sorted(latest))
        self.values = array("d", map(latest.__getitem__, self.steps))
        self.repeated, self.changed = len(repeated), len(changed)
        self.first_repeated = min(repeated, default=None)

    @property
    def interval(self) -> int:
        """The usual distance between two steps; 1 for a single one."""
        later = itertools.islice(self.steps, 1, None)
        gaps = Counter(map(operator.sub, later, self.steps))
        return gaps.most_common(1)[0][0] if gaps else 1


def significant_digits(value: float) -> int:
    """Digits of the shortest decimal that is this float.

    >>> significant_digits(5.4321), significant_digits(1200.0), significant_digits(0.1 + 0.2)
    (5, 2, 17)
    """
    mantissa = repr(value).lstrip("-").partition("e")[0]
    return len(mantissa.replace(".", "").strip("0"))
