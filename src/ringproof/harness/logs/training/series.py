"""The values of one quantity by step."""

from __future__ import annotations

import itertools
import math
import operator
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Series:
    """One quantity of one run, each step once, in ascending order.

    Attributes:
        name: As it is compared: ``loss``; ``column`` is what the file calls it.
        repeated: Steps that stood more than once (the run was restarted): the later one counts.
        changed: How many of them with another value than before.
        first_repeated: The first such step.
        precision: How finely it was printed.
    """

    name: str
    column: str
    steps: array[int]
    values: array[float]
    repeated: int = 0
    changed: int = 0
    first_repeated: int | None = None
    precision: Precision = Precision()

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def interval(self) -> int:
        """The usual distance between two steps; 1 for a single one."""
        later = itertools.islice(self.steps, 1, None)
        gaps = Counter(map(operator.sub, later, self.steps))
        return gaps.most_common(1)[0][0] if gaps else 1

    @property
    def digits(self) -> int:
        """Significant digits shown by the longest value, counted to :data:`EXACT_DIGITS`."""
        most = 0
        for value in filter(math.isfinite, self.values):
            most = max(most, significant_digits(value))
            if most >= EXACT_DIGITS:
                break
        return min(most, EXACT_DIGITS)


class SeriesBuilder:
    """Gathers values in the order of the file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.column = name
        self.precision = Precision()
        self._steps = array("q")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, value: float) -> None:
        """The next value of the file."""
        self._steps.append(step)
        self._values.append(value)

    def finish(self) -> Series:
        """The series; of steps that stand more than once the later one counts."""
        later = itertools.islice(self._steps, 1, None)
        if all(map(operator.lt, self._steps, later)):
            return Series(
                self.name, self.column, self._steps, self._values, precision=self.precision
            )
        steps, values = array("q"), array("d")
        repeated = Counter[int]()
        changed: set[int] = set()
        for step, value in self._ordered():
            if steps and steps[-1] == step:
                repeated[step] += 1
                if value != values[-1]:
                    changed.add(step)
                values[-1] = value
            else:
                steps.append(step)
                values.append(value)
        return Series(
            self.name,
            self.column,
            steps,
            values,
            len(repeated),
            len(changed),
            min(repeated, default=None),
            self.precision,
        )

    def _ordered(self) -> Iterator[tuple[int, float]]:
        """By step; equal steps stay in the order of the file."""
        order = sorted(range(len(self._steps)), key=self._steps.__getitem__)
        return ((self._steps[place], self._values[place]) for place in order)


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


def significant_digits(value: float) -> int:
    """Digits of the shortest decimal that is this float.

    >>> significant_digits(5.4321), significant_digits(1200.0), significant_digits(0.1 + 0.2)
    (5, 2, 17)
    """
    mantissa = repr(value).lstrip("-").partition("e")[0]
    return len(mantissa.replace(".", "").strip("0"))
