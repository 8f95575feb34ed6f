"""Compare two training logs, and say what kind of difference it is: drift or a jump.

Two runs that compute the same in another order differ by rounding first (about 1e-16 of the value
in float64, 1e-7 in float32), and training lets that grow little by little. A fault shows at once.
So the first step beyond the tolerance is compared with all steps before it:

* ``equal``: no step differs (to the last printed digit, where a log rounds).
* ``within``: steps differ, none by more than the tolerance.
* ``different from the start``: the first common step is beyond the tolerance already. Another seed,
  other data, another normaliser.
* ``jump``: the first difference beyond the tolerance leaps up from the largest one before it: by
  more than ten times; by more than the largest had risen over the noise in all steps before; and by
  more than the square of the largest rise in any one of them (twice as steep on a log scale).
  Noise is what the quietest quarter of the steps before stays under, and at least rounding level:
  a few units in the last place of the numbers (float64, or float32 where every value is one), or
  what the log's print hides.
  The same rule is applied to the last steps alone, so that a small difference that has healed long
  before does not hide a jump.
* ``drift``: every other crossing: the difference came closer step by step. A jump that stayed below
  the tolerance, and one after the crossing, are named beside it.
* ``nan``: at the first step beyond the tolerance only one run has a finite number; or both runs
  end in steps that are not numbers, which proves nothing.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import compress, pairwise

from ringproof.errors import InputError
from ringproof.logs.training.curves import CurveFinding
from ringproof.logs.training.log import TrainingLog
from ringproof.logs.training.series import Series

LEAP = 10.0
LATER_LEAP = 100.0
FLOAT64_LEVEL = 8 * 2.0**-52
FLOAT32_LEVEL = 8 * 2.0**-23
CONSTANT_STEPS = 5
"""A ratio that holds this long (or as long as there are steps, at least three) is constant."""
RECENT_STEPS = 20
"""The last steps before a crossing, to which the rule is applied a second time."""
PERIOD_KEPT = 0.75
"""Part of the steps of a period that must be beyond the tolerance, at least three of them."""
_FUZZ = 1 + 1e-6
"""So that one unit in the last place is not more than one unit by the rounding of float64."""
_SAMPLE = 4096
_QUIET_PART = 4
_CONSTANT_WITHIN = 0.02
_CONSTANT_FROM = 1e-3


class Kind(str, Enum):
    """The classes of the module's rule."""

    EQUAL = "equal"
    WITHIN = "within"
    DRIFT = "drift"
    JUMP = "jump"
    START = "different from the start"
    NAN = "nan"


@dataclass(frozen=True)
class PairedValues:
    """Both values at one step."""

    step: int
    a: float
    b: float
    relative: float


@dataclass(frozen=True)
class ConstantRatio:
    """B is the same multiple of A, ``ratio``, at the first ``steps`` steps beyond the tolerance."""

    ratio: float
    steps: int


@dataclass(frozen=True)
class Period:
    """The steps beyond the tolerance are ``length`` apart, from ``first`` to ``last``.

    Attributes:
        beyond: Number of these steps; ``within`` those between them that are within the tolerance.
    """

    length: int
    first: int
    last: int
    beyond: int
    within: int


@dataclass(frozen=True)
class Judgement:
    """The class of a difference and what it rests on.

    Attributes:
        largest_before: Largest relative difference before the first one beyond the tolerance.
        earlier_jump: The steepest leap before a gradual crossing; ``later_jump`` after it.
    """

    kind: Kind
    largest_before: float = 0.0
    level: float = 0.0
    ratio: ConstantRatio | None = None
    period: Period | None = None
    earlier_jump: PairedValues | None = None
    later_jump: PairedValues | None = None


@dataclass(frozen=True)
class SeriesComparison:
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

    @cached_property
    def judgement(self) -> Judgement:
        """The class of the difference."""
        return _judge(self)

    @property
    def within(self) -> bool:
        """Whether nothing in it is a finding."""
        return self.judgement.kind in (Kind.EQUAL, Kind.WITHIN)

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


def compare_series(a: Series, b: Series, tolerance: float) -> SeriesComparison:
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
    return SeriesComparison(a, b, steps, left, right, relative, places, *counts)


@dataclass(frozen=True)
class Comparison:
    """Two logs, side by side.

    Attributes:
        series: Those that both hold at common steps, in the order asked for.
        missing: Series asked for that only one log, or neither, holds.
    """

    a: TrainingLog
    b: TrainingLog
    tolerance: float
    series: tuple[SeriesComparison, ...]
    missing: tuple[str, ...]

    @cached_property
    def curves(self) -> tuple[tuple[str, CurveFinding], ...]:
        """What is conspicuous in the loss and the gradient norm of each log, with its role."""
        return tuple(
            (log.role, finding) for log in (self.a, self.b) for finding in log.curve_findings()
        )

    @property
    def within(self) -> bool:
        """Whether all series are within the tolerance."""
        return all(one.within for one in self.series)

    @property
    def deciding(self) -> SeriesComparison:
        """The series that diverges first; if none does, the one with the largest difference."""
        beyond = [one for one in self.series if not one.within]
        if beyond:
            return min(beyond, key=lambda one: one.first.step if one.first else math.inf)

        def size(one: SeriesComparison) -> tuple[bool, float]:
            largest = one.largest
            return one.judgement.kind is not Kind.EQUAL, largest.relative if largest else 0.0

        return max(self.series, key=size)


def compare_logs(
    a: TrainingLog, b: TrainingLog, wanted: Sequence[str], tolerance: float
) -> Comparison:
    """Compare the wanted series of two logs.

    Raises:
        InputError: The logs share no series, or no step.
    """
    shared = [name for name in wanted if name in a.series and name in b.series]
    if not shared:
        remedy = "name the same quantity in both with --columns"
        held = f"A has {', '.join(a.series)}, B has {', '.join(b.series)}"
        raise InputError("A, B", None, f"share no series: {held}", remedy)
    pairs = [compare_series(a.series[name], b.series[name], tolerance) for name in shared]
    compared = tuple(one for one in pairs if one.steps)
    if not compared:
        one, other = pairs[0].a.steps, pairs[0].b.steps
        held = f"A has {one[0]} to {one[-1]}, B has {other[0]} to {other[-1]}"
        raise InputError("A, B", None, f"no common steps: {held}", "compare logs of the same steps")
    names = {one.name for one in compared}
    missing = tuple(name for name in wanted if name not in names)
    return Comparison(a, b, tolerance, compared, missing)


def _judge(one: SeriesComparison) -> Judgement:
    """Apply the rule to the differences of one series."""
    if not one.places:
        if math.isnan(one.relative[-1]):
            return Judgement(Kind.NAN)
        # Against exact numbers print rounds once; two prints that differ have different digits.
        prints = one.a.precision.rounded and one.b.precision.rounded
        apart = one.differing or (one.rounding and prints)
        return Judgement(Kind.WITHIN if apart else Kind.EQUAL)
    first = one.places[0]
    relative = one.relative[first]
    before = one.relative[:first]
    level = max(number_level(one), one.hidden(first), _quiet_level(before))
    past, recent = _Past(level, before), _Past(level, before[-RECENT_STEPS:])
    rest = Judgement(Kind.DRIFT, past.largest, level, _constant_ratio(one), _period(one))
    if not math.isfinite(relative):
        return replace(rest, kind=Kind.NAN)
    if first == 0:
        return replace(rest, kind=Kind.START)
    if past.jumps(relative) or recent.jumps(relative):
        return replace(rest, kind=Kind.JUMP)
    return replace(
        rest,
        earlier_jump=_steepest(one, 1, first, level),
        later_jump=_steepest(one, first + 1, len(one.steps), level),
    )


class _Past:
    """Differences up to some step, and the rule itself, in factors.

    Attributes:
        largest: The largest of them.
        growth: The steepest rise of the largest at one step.
    """

    def __init__(self, level: float, relative: Iterable[float] = ()) -> None:
        self.level = level
        self.largest, self.growth = 0.0, 1.0
        for value in relative:
            self.take(value)

    def take(self, value: float) -> float:
        """Take the difference of the next step; return how steeply the largest rises, or 0."""
        if not value > self.largest:
            return 0.0
        steepness = value / max(self.largest, self.level)
        self.growth = max(self.growth, steepness)
        self.largest = value
        return steepness

    def jumps(self, relative: float) -> bool:
        """Whether a difference after them is a jump."""
        base = max(self.largest, self.level)
        return relative / base > max(LEAP, base / self.level, self.growth**2)


def _quiet_level(before: array[float]) -> float:
    """What the quietest quarter of the differences stays under, from a sample."""
    sample = sorted(filter(math.isfinite, before[:: max(1, len(before) // _SAMPLE)]))
    return sample[len(sample) // _QUIET_PART] if sample else 0.0


def number_level(one: SeriesComparison) -> float:
    """Rounding level of the numbers: of float32 where every value looked at is one."""
    values = [
        value
        for side in (one.a_values, one.b_values)
        for value in side[:_SAMPLE]
        if math.isfinite(value) and abs(value) < 1e38
    ]
    return FLOAT32_LEVEL if list(array("f", values)) == values else FLOAT64_LEVEL


def _steepest(one: SeriesComparison, start: int, stop: int, level: float) -> PairedValues | None:
    """Where the difference leaps most beyond all before it; ``None`` without a leap."""
    past = _Past(level, one.relative[:start])
    steepest, found = LATER_LEAP, None
    for place in range(start, stop):
        growth = past.growth
        steepness = past.take(one.relative[place])
        if steepness > max(growth**2, steepest):
            steepest, found = steepness, place
    return one.point(found)


def _constant_ratio(one: SeriesComparison) -> ConstantRatio | None:
    """The ratio B / A at the steps beyond, as long as its distance from 1 keeps within 2%."""
    start = _ratio(one, one.places[0])
    if start is None or abs(start - 1) < _CONSTANT_FROM:
        return None
    held = 0
    for place in one.places:
        ratio = _ratio(one, place)
        slack = _CONSTANT_WITHIN * abs(start - 1) + 2 * one.hidden(place) * abs(start)
        if ratio is None or abs(ratio - start) > slack:
            break
        held += 1
    enough = max(3, min(CONSTANT_STEPS, len(one.places)))
    return ConstantRatio(start, held) if held >= enough else None


def _period(one: SeriesComparison) -> Period | None:
    """The distance of the steps beyond the tolerance, where steps between them are within it."""
    steps = [one.steps[place] for place in one.places]
    span = one.steps[one.places[0] : one.places[-1] + 1]
    if len(steps) < 3 or len(steps) == len(span):
        return None
    length = math.gcd(*(after - before for before, after in pairwise(steps)))
    on_period = sum((step - steps[0]) % length == 0 for step in span)
    if length == 1 or on_period == len(span) or len(steps) < PERIOD_KEPT * on_period:
        return None
    return Period(length, steps[0], steps[-1], len(steps), on_period - len(steps))


def _ratio(one: SeriesComparison, place: int) -> float | None:
    a, b = one.a_values[place], one.b_values[place]
    return b / a if a and b and math.isfinite(a) and math.isfinite(b) else None
