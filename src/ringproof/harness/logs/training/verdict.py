"""What kind of difference it is: the rule that tells drift from a jump.

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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise, repeat

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
    """Compare at every common step."""
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


LEAP = 10.0
LATER_LEAP = 100.0
FLOAT64_LEVEL = 8 * 2.0**-52
FLOAT32_LEVEL = 8 * 2.0**-23
_SAMPLE = 4096
_QUIET_PART = 4

CONSTANT_STEPS = 5
"""A ratio that holds this long (or as long as there are steps, at least three) is constant."""
RECENT_STEPS = 20
"""The last steps before a crossing, to which the rule is applied a second time."""
PERIOD_KEPT = 0.75
"""Part of the steps of a period that must be beyond the tolerance, at least three of them."""
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
        earlier_jump: Place of the steepest leap before a gradual crossing; ``later_jump`` after it.
    """

    kind: Kind
    largest_before: float = 0.0
    level: float = 0.0
    ratio: ConstantRatio | None = None
    period: Period | None = None
    earlier_jump: int | None = None
    later_jump: int | None = None


def judge(common: Common, found: Differences, a: Precision, b: Precision) -> Judgement:
    """Apply the rule to the differences of one series."""
    first = found.first_beyond
    if first is None:
        if _ends_undefined(found.relative):
            return Judgement(Kind.NAN)
        # Against exact numbers print rounds once; two prints that differ have different digits.
        apart = found.differing or (found.rounding and a.rounded and b.rounded)
        return Judgement(Kind.WITHIN if apart else Kind.EQUAL)
    numbers = max(number_level(common), resolution(common, first, a, b))
    level = max(numbers, _quiet_level(found.relative, first))
    before, growth = _history(found.relative, 0, first, level)
    relative = found.relative[first]
    rest = Judgement(
        Kind.DRIFT, before, level, _constant_ratio(common, found, a, b), _period(common, found)
    )
    if not math.isfinite(relative):
        return replace(rest, kind=Kind.NAN)
    if first == 0:
        return replace(rest, kind=Kind.START)
    start = max(0, first - RECENT_STEPS)
    recent, recent_growth = _history(found.relative, start, first, level)
    if is_jump(relative, before, growth=growth, level=level) or is_jump(
        relative, recent, growth=recent_growth, level=level
    ):
        return replace(rest, kind=Kind.JUMP)
    return replace(
        rest,
        earlier_jump=_steepest(found.relative, 1, first, level),
        later_jump=_steepest(found.relative, first + 1, len(found.relative), level),
    )


def is_jump(relative: float, largest: float, *, growth: float, level: float) -> bool:
    """The rule itself, in factors.

    Args:
        largest: The largest before it.
        growth: The largest rise of the largest in one step before it.
    """
    base = max(largest, level)
    return relative / base > max(LEAP, base / level, growth**2)


def _quiet_level(relative: array[float], stop: int) -> float:
    """What the quietest quarter of the differences before ``stop`` stays under, from a sample."""
    sample = sorted(
        value for value in relative[: stop : max(1, stop // _SAMPLE)] if math.isfinite(value)
    )
    return sample[len(sample) // _QUIET_PART] if sample else 0.0


def number_level(common: Common) -> float:
    """Rounding level of the numbers: of float32 where every value looked at is one."""
    values = [
        value
        for side in (common.a, common.b)
        for value in side[:_SAMPLE]
        if math.isfinite(value) and abs(value) < 1e38
    ]
    return FLOAT32_LEVEL if list(array("f", values)) == values else FLOAT64_LEVEL


def _history(relative: array[float], start: int, stop: int, level: float) -> tuple[float, float]:
    """Largest difference from ``start`` to ``stop``, and the steepest growth of the largest."""
    largest, growth = 0.0, 1.0
    for value in relative[start:stop]:
        if value > largest:
            growth = max(growth, value / max(largest, level))
            largest = value
    return largest, growth


def _steepest(relative: array[float], start: int, stop: int, level: float) -> int | None:
    """Where the difference leaps most beyond all before it; ``None`` without a leap."""
    largest, growth = _history(relative, 0, start, level)
    steepest, found = 0.0, None
    for place in range(start, stop):
        value = relative[place]
        if not value > largest:
            continue
        steepness = value / max(largest, level)
        if steepness > max(LATER_LEAP, growth**2, steepest):
            steepest, found = steepness, place
        growth = max(growth, steepness)
        largest = value
    return found


def _constant_ratio(
    common: Common, found: Differences, a: Precision, b: Precision
) -> ConstantRatio | None:
    """The ratio B / A at the steps beyond, as long as its distance from 1 keeps within 2%."""
    start = _ratio(common, found.places[0])
    if start is None or abs(start - 1) < _CONSTANT_FROM:
        return None
    held = 0
    for place in found.places:
        ratio = _ratio(common, place)
        hidden = 2 * resolution(common, place, a, b) * abs(start)
        if ratio is None or abs(ratio - start) > _CONSTANT_WITHIN * abs(start - 1) + hidden:
            break
        held += 1
    enough = max(3, min(CONSTANT_STEPS, found.beyond))
    return ConstantRatio(start, held) if held >= enough else None


def _period(common: Common, found: Differences) -> Period | None:
    """The distance of the steps beyond the tolerance, where steps between them are within it."""
    steps = [common.steps[place] for place in found.places]
    if len(steps) < 3 or len(steps) == found.places[-1] - found.places[0] + 1:
        return None
    length = math.gcd(*(after - before for before, after in pairwise(steps)))
    on_period = sum(
        (step - steps[0]) % length == 0
        for step in common.steps[found.places[0] : found.places[-1] + 1]
    )
    if length == 1 or on_period == found.places[-1] - found.places[0] + 1:
        return None
    if len(steps) < PERIOD_KEPT * on_period:
        return None
    return Period(length, steps[0], steps[-1], len(steps), on_period - len(steps))


def _ratio(common: Common, place: int) -> float | None:
    one, other = common.a[place], common.b[place]
    if not (math.isfinite(one) and math.isfinite(other)) or one == 0 or other == 0:
        return None
    return other / one


def _ends_undefined(relative: array[float]) -> bool:
    return bool(relative) and math.isnan(relative[-1])
