"""Compare two training logs series by series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ringproof.errors import InputError
from ringproof.harness.logs.training.log import TrainingLog
from ringproof.harness.logs.training.series import Series
from ringproof.harness.logs.training.verdict import (
    Common,
    Differences,
    Judgement,
    Kind,
    common_steps,
    differences,
    judge,
    resolution,
)


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
        resolution: Smallest and largest relative difference that print could hide at some step.
    """

    a: Series
    b: Series
    common: Common
    found: Differences
    judgement: Judgement
    resolution: tuple[float, float]

    @property
    def name(self) -> str:
        """Name of the series."""
        return self.a.name

    @property
    def within(self) -> bool:
        """Whether nothing in it is a finding."""
        return self.judgement.kind in (Kind.EQUAL, Kind.WITHIN)

    @property
    def first(self) -> Point | None:
        """The first step beyond the tolerance."""
        return self.point(self.found.first_beyond)

    @property
    def last(self) -> Point | None:
        """The last step beyond the tolerance."""
        return self.point(self.found.last_beyond)

    @property
    def largest(self) -> Point | None:
        """The largest difference, ``None`` where all values are equal."""
        most = max((value for value in self.found.relative if value == value), default=0.0)
        return self.point(self.found.relative.index(most)) if most > 0 else None

    @property
    def earlier_jump(self) -> Point | None:
        """A jump before a gradual crossing of the tolerance."""
        return self.point(self.judgement.earlier_jump)

    @property
    def later_jump(self) -> Point | None:
        """A jump after a gradual crossing of the tolerance."""
        return self.point(self.judgement.later_jump)

    @property
    def healed(self) -> int:
        """Common steps after the last one beyond the tolerance."""
        last = self.found.last_beyond
        return 0 if last is None else len(self.common.steps) - 1 - last

    def point(self, place: int | None) -> Point | None:
        """Return the values at a place in the common steps."""
        if place is None:
            return None
        common = self.common
        relative = self.found.relative[place]
        return Point(common.steps[place], common.a[place], common.b[place], relative)


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
    pairs = [(a.series[name], b.series[name]) for name in shared]
    commons = [common_steps(one, other) for one, other in pairs]
    compared = tuple(
        _compare(one, other, common, tolerance)
        for (one, other), common in zip(pairs, commons, strict=True)
        if common.steps
    )
    if not compared:
        one, other = pairs[0][0].steps, pairs[0][1].steps
        held = f"A has {one[0]} to {one[-1]}, B has {other[0]} to {other[-1]}"
        raise InputError("A, B", None, f"no common steps: {held}", "compare logs of the same steps")
    names = {one.name for one in compared}
    missing = tuple(name for name in wanted if name not in names)
    return Comparison(a, b, tolerance, compared, missing)


def _compare(a: Series, b: Series, common: Common, tolerance: float) -> SeriesComparison:
    found = differences(common, tolerance, a.precision, b.precision)
    judgement = judge(common, found, a.precision, b.precision)
    hidden = [0.0]
    if a.precision.rounded or b.precision.rounded:
        places = range(len(common.steps))
        seen = (resolution(common, place, a.precision, b.precision) for place in places)
        hidden = [value for value in seen if value > 0] or hidden
    return SeriesComparison(a, b, common, found, judgement, (min(hidden), max(hidden)))
