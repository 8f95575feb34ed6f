"""Two training logs compared: each series with its verdict, the run's verdict, and cautions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ringproof.errors import InputError
from ringproof.harness.logs.training.difference import (
    Common,
    Differences,
    common_steps,
    differences,
    resolution,
)
from ringproof.harness.logs.training.log import TrainingLog
from ringproof.harness.logs.training.series import Series
from ringproof.harness.logs.training.verdict import Judgement, Kind, judge


@dataclass(frozen=True)
class Point:
    """Both values at one step."""

    step: int
    a: float
    b: float
    relative: float


@dataclass(frozen=True)
class SeriesComparison:
    """One series of both logs.

    Attributes:
        common: The series at their common steps; ``found`` how far they lie apart there.
        judgement: The class of the difference.
        first: First step beyond the tolerance; ``last`` the last one; ``largest`` the largest
            difference of all; ``earlier_jump`` and ``later_jump`` jumps before and after a gradual
            crossing.
        resolution: Smallest and largest relative difference that print could hide at some step.
    """

    name: str
    a: Series
    b: Series
    common: Common
    found: Differences
    judgement: Judgement
    first: Point | None
    last: Point | None
    largest: Point | None
    earlier_jump: Point | None
    later_jump: Point | None
    resolution: tuple[float, float]

    @property
    def within(self) -> bool:
        """Whether nothing in it is a finding."""
        return self.judgement.kind in (Kind.EQUAL, Kind.WITHIN)

    @property
    def healed(self) -> int:
        """Common steps after the last one beyond the tolerance."""
        last = self.found.last_beyond
        return 0 if last is None else len(self.common.steps) - 1 - last


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
        return max(
            self.series,
            key=lambda one: (
                one.judgement.kind is not Kind.EQUAL,
                one.largest.relative if one.largest else 0.0,
            ),
        )


def compare_logs(
    a: TrainingLog, b: TrainingLog, wanted: Sequence[str], tolerance: float
) -> Comparison:
    """Compare the wanted series of two logs.

    Raises:
        InputError: the logs share no series, or no step.
    """
    shared = [name for name in wanted if name in a.series and name in b.series]
    if not shared:
        remedy = "name the same quantity in both with --columns"
        held = f"A has {', '.join(a.series)}, B has {', '.join(b.series)}"
        raise InputError("A, B", None, f"share no series: {held}", remedy)
    compared = []
    for name in shared:
        common = common_steps(a.series[name], b.series[name])
        if common.steps:
            compared.append(_compare(a.series[name], b.series[name], common, tolerance))
    if not compared:
        one, other = a.series[shared[0]].steps, b.series[shared[0]].steps
        held = f"A has {one[0]} to {one[-1]}, B has {other[0]} to {other[-1]}"
        raise InputError("A, B", None, f"no common steps: {held}", "compare logs of the same steps")
    names = {one.name for one in compared}
    missing = tuple(name for name in wanted if name not in names)
    return Comparison(a, b, tolerance, tuple(compared), missing)


def _compare(a: Series, b: Series, common: Common, tolerance: float) -> SeriesComparison:
    found = differences(common, tolerance, a.precision, b.precision)
    judgement = judge(common, found, a.precision, b.precision)
    return SeriesComparison(
        name=a.name,
        a=a,
        b=b,
        common=common,
        found=found,
        judgement=judgement,
        first=_point(common, found, found.first_beyond),
        last=_point(common, found, found.last_beyond),
        largest=_point(common, found, _largest(found)),
        earlier_jump=_point(common, found, judgement.earlier_jump),
        later_jump=_point(common, found, judgement.later_jump),
        resolution=_resolution(common, a, b),
    )


def _point(common: Common, found: Differences, place: int | None) -> Point | None:
    if place is None:
        return None
    return Point(common.steps[place], common.a[place], common.b[place], found.relative[place])


def _largest(found: Differences) -> int | None:
    """Place of the largest difference, ``None`` where all values are equal."""
    largest = max((value for value in found.relative if value == value), default=0.0)
    return found.relative.index(largest) if largest > 0 else None


def _resolution(common: Common, a: Series, b: Series) -> tuple[float, float]:
    if not (a.precision.rounded or b.precision.rounded):
        return 0.0, 0.0
    hidden = [
        resolution(common, place, a.precision, b.precision) for place in range(len(common.steps))
    ]
    seen = [value for value in hidden if value > 0] or [0.0]
    return min(seen), max(seen)
