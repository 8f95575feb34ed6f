"""What kind a difference of two training logs is: mostly drift or a jump.

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
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from ringproof.logs.training.align import AlignedSeries, PairedValues

LEAP = 10.0
"""Growth of a difference in one step that a jump exceeds; rounding that a training amplifies grows
by less (checks/logs/test_parity_verdict.py trains networks that do)."""
LATER_LEAP = 100.0
"""The same beside a drift, where noise has more steps in which to leap by chance."""
FLOAT64_LEVEL = 8 * 2.0**-52
"""Units in the last place by which a sum in another order may differ; likewise for float32."""
FLOAT32_LEVEL = 8 * 2.0**-23
CONSTANT_STEPS = 5
"""A ratio that holds this long (or as long as there are steps, at least three) is constant."""
RECENT_STEPS = 20
"""The last steps before a crossing, to which the rule is applied a second time."""
PERIOD_KEPT = 0.75
"""Part of the steps of a period that must be beyond the tolerance, at least three of them."""
_SAMPLE = 4096  # values that are looked at, so that a long log costs no more
_QUIET_PART = 4  # the quietest quarter: a fault that comes and goes leaves at least that
_CONSTANT_WITHIN = 0.02  # a ratio of token counts is not the same to the digit in each step
_CONSTANT_FROM = 1e-3  # nearer to 1 the numbers differ, not the normaliser


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
        earlier_jump: The steepest leap before a gradual crossing; ``later_jump`` after it.
    """

    kind: Kind
    largest_before: float = 0.0
    level: float = 0.0
    ratio: ConstantRatio | None = None
    period: Period | None = None
    earlier_jump: PairedValues | None = None
    later_jump: PairedValues | None = None


def judge(one: AlignedSeries) -> Judgement:
    """Apply the module's rule to the differences of one series."""
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


def number_level(one: AlignedSeries) -> float:
    """Rounding level of the numbers: of float32 where every value looked at is one."""
    values = [
        value
        for side in (one.a_values, one.b_values)
        for value in side[:_SAMPLE]
        if math.isfinite(value) and abs(value) < 1e38
    ]
    return FLOAT32_LEVEL if list(array("f", values)) == values else FLOAT64_LEVEL


def _steepest(one: AlignedSeries, start: int, stop: int, level: float) -> PairedValues | None:
    """Where the difference leaps most beyond all before it; ``None`` without a leap."""
    past = _Past(level, one.relative[:start])
    steepest, found = LATER_LEAP, None
    for place in range(start, stop):
        growth = past.growth
        steepness = past.take(one.relative[place])
        if steepness > max(growth**2, steepest):
            steepest, found = steepness, place
    return one.point(found)


def _constant_ratio(one: AlignedSeries) -> ConstantRatio | None:
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


def _period(one: AlignedSeries) -> Period | None:
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


def _ratio(one: AlignedSeries, place: int) -> float | None:
    a, b = one.a_values[place], one.b_values[place]
    return b / a if a and b and math.isfinite(a) and math.isfinite(b) else None
