"""Align two series at their common steps, and find where they first differ.

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
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

from ringproof.logs.training.series import Series

_FUZZ = 1 + 1e-6
"""So that one unit in the last place is not more than one unit by the rounding of float64."""


@dataclass(frozen=True)
class PairedValues:
    """Both values at one step."""

    step: int
    a: float
    b: float
    relative: float


@dataclass(frozen=True)
class AlignedSeries:
    """One series of both logs at the steps that both have.

    Attributes:
        steps: The common steps; ``a_values`` and ``b_values`` are those of ``a`` and ``b`` there.
        relative: Relative difference at each common step; NaN where undefined.
        places: Places in the common steps whose difference exceeds the tolerance.
        differing: Steps that differ by more than print rounds away.
        rounding: Steps whose printed digits differ, but by no more than rounding could do.
        undefined: Steps that are not finite numbers in both.
    """

    a: Series
    b: Series
    steps: array[int]
    a_values: array[float]
    b_values: array[float]
    relative: array[float]
    places: array[int]
    differing: int
    rounding: int
    undefined: int

    @property
    def name(self) -> str:
        """Name of the series."""
        return self.a.name

    @property
    def first(self) -> PairedValues | None:
        """The first step beyond the tolerance."""
        return self.point(self.places[0] if self.places else None)

    @property
    def last(self) -> PairedValues | None:
        """The last step beyond the tolerance."""
        return self.point(self.places[-1] if self.places else None)

    @property
    def largest(self) -> PairedValues | None:
        """The largest difference, ``None`` where all values are equal."""
        most = max((value for value in self.relative if value == value), default=0.0)
        return self.point(self.relative.index(most)) if most > 0 else None

    @property
    def healed(self) -> int:
        """Common steps after the last one beyond the tolerance."""
        return len(self.steps) - 1 - self.places[-1] if self.places else 0

    @cached_property
    def resolution(self) -> tuple[float, float]:
        """Smallest and largest relative difference that print could hide at some step."""
        if not (self.a.precision.rounded or self.b.precision.rounded):
            return 0.0, 0.0
        hidden = [value for value in map(self.hidden, range(len(self.steps))) if value > 0] or [0.0]
        return min(hidden), max(hidden)

    def hidden(self, place: int) -> float:
        """Relative difference that print could hide at one step; 0 where nothing is rounded."""
        one, other = self.a_values[place], self.b_values[place]
        scale = max(abs(one), abs(other))
        units = self.a.precision.unit(one) + self.b.precision.unit(other)
        return units / 2 / scale if scale > 0 and math.isfinite(scale) else 0.0

    def point(self, place: int | None) -> PairedValues | None:
        """Return the values at a place in the common steps."""
        if place is None:
            return None
        values = self.a_values[place], self.b_values[place], self.relative[place]
        return PairedValues(self.steps[place], *values)


def align(a: Series, b: Series, tolerance: float) -> AlignedSeries:
    """Compare two series at every step that both have."""
    both = set(a.steps).intersection(b.steps)
    steps = array("q", filter(both.__contains__, a.steps))
    left, right = (
        array("d", compress(one.values, map(both.__contains__, one.steps))) for one in (a, b)
    )
    one_print = tolerance == 0 and a.precision == b.precision
    relative, places = array("d"), array("q")
    differing = rounding = undefined = 0
    for place, (one, other) in enumerate(zip(left, right, strict=True)):
        if one == other and math.isfinite(one):
            relative.append(0.0)
            continue
        if not (math.isfinite(one) and math.isfinite(other)):
            same = one == other or (one != one and other != other)
            relative.append(math.nan if same else math.inf)
            undefined += same
            proven = 0.0 if same else math.inf
        else:
            scale = max(abs(one), abs(other))
            gap = abs(one - other)
            units = 0.0 if one_print else a.precision.unit(one) + b.precision.unit(other)
            slack = units / 2 * _FUZZ
            relative.append(gap / scale)
            rounding += gap <= slack
            proven = 0.0 if gap <= slack else (gap - slack) / scale
        differing += proven > 0
        if proven > tolerance:
            places.append(place)
    counts = differing, rounding, undefined
    return AlignedSeries(a, b, steps, left, right, relative, places, *counts)
