"""How far two series lie apart, step by step.

The relative difference of a and b is ``abs(a - b) / max(abs(a), abs(b))``, 0 where both are equal
and infinite where only one is a finite number. Where both are NaN, or the same infinity, there is
nothing to compare: the step is counted as undefined.

A value that was rounded for print may stand for any number within half a unit of its last printed
place. A step is beyond the tolerance only if it is so for all numbers that could have been printed
this way. With a tolerance of 0 two values of the same precision differ where their digits do.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

from ringproof.harness.logs.training.series import Precision, Series

_FUZZ = 1 + 1e-6
"""So that one unit in the last place is not more than one unit by the rounding of float64."""


@dataclass(frozen=True)
class Common:
    """Two series at the steps both have, with the steps that only one has."""

    steps: array[int]
    a: array[float]
    b: array[float]
    only_a: int
    only_b: int


@dataclass(frozen=True)
class Differences:
    """Relative differences at the common steps, in order.

    Attributes:
        relative: One for each common step; NaN where undefined.
        places: Places in the common steps whose difference exceeds the tolerance.
        differing: Steps that differ by more than print rounds away.
        rounding: Steps whose printed digits differ, but by no more than rounding could do.
        undefined: Steps that are NaN, or the same infinity, in both.
    """

    relative: array[float]
    places: array[int]
    differing: int
    rounding: int
    undefined: int

    @property
    def beyond(self) -> int:
        """Number of steps beyond the tolerance."""
        return len(self.places)

    @property
    def first_beyond(self) -> int | None:
        """The first place beyond the tolerance."""
        return self.places[0] if self.places else None

    @property
    def last_beyond(self) -> int | None:
        """The last place beyond the tolerance."""
        return self.places[-1] if self.places else None


def common_steps(a: Series, b: Series) -> Common:
    """Both series at the steps that both have."""
    if a.steps == b.steps:
        return Common(a.steps, a.values, b.values, 0, 0)
    steps, left, right = array("q"), array("d"), array("d")
    i = j = 0
    while i < len(a) and j < len(b):
        one, other = a.steps[i], b.steps[j]
        if one == other:
            steps.append(one)
            left.append(a.values[i])
            right.append(b.values[j])
        i += one <= other
        j += other <= one
    return Common(steps, left, right, len(a) - len(steps), len(b) - len(steps))


def differences(common: Common, tolerance: float, a: Precision, b: Precision) -> Differences:
    """Compare at every common step.

    Args:
        common: The two series.
        tolerance: Largest relative difference that is no finding; 0 means bitwise.
        a: How finely the first was printed; ``b`` the second.
    """
    relative, beyond = array("d"), array("q")
    differing = rounding = undefined = 0
    isfinite = math.isfinite
    for place, (one, other, slack) in enumerate(
        zip(common.a, common.b, _slacks(common, tolerance, a, b))  # noqa: B905 - slacks has no end
    ):
        if one == other and isfinite(one):
            relative.append(0.0)
            continue
        if not (isfinite(one) and isfinite(other)):
            same = one == other or (one != one and other != other)
            relative.append(math.nan if same else math.inf)
            undefined += same
            proven = 0.0 if same else math.inf
        else:
            scale = max(abs(one), abs(other))
            gap = abs(one - other)
            relative.append(gap / scale)
            rounding += gap <= slack
            proven = 0.0 if gap <= slack else (gap - slack) / scale
        differing += proven > 0
        if proven > tolerance:
            beyond.append(place)
    return Differences(relative, beyond, differing, rounding, undefined)


def resolution(common: Common, place: int, a: Precision, b: Precision) -> float:
    """Relative difference that print could hide at one step; 0 where nothing is rounded."""
    one, other = common.a[place], common.b[place]
    scale = max(abs(one), abs(other))
    units = a.unit(one) + b.unit(other)
    return units / 2 / scale if scale > 0 and math.isfinite(scale) else 0.0


def _slacks(common: Common, tolerance: float, a: Precision, b: Precision) -> Iterator[float]:
    if not (a.rounded or b.rounded) or (tolerance == 0 and a == b):
        return repeat(0.0)
    return (
        (a.unit(one) + b.unit(other)) / 2 * _FUZZ
        for one, other in zip(common.a, common.b, strict=True)
    )
