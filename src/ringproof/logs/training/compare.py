"""Compare two training logs, series by series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ringproof.errors import InputError
from ringproof.logs.training.align import AlignedSeries, align
from ringproof.logs.training.curves import CurveFinding
from ringproof.logs.training.kind import Judgement, Kind, judge
from ringproof.logs.training.read import TrainingLog
from ringproof.logs.training.series import Series


class SeriesComparison(AlignedSeries):
    """One series of both logs at the steps that both have, and the kind of its difference."""

    @cached_property
    def judgement(self) -> Judgement:
        """The class of the difference."""
        return judge(self)

    @property
    def within(self) -> bool:
        """Whether nothing in it is a finding."""
        return self.judgement.kind in (Kind.EQUAL, Kind.WITHIN)


def compare_series(a: Series, b: Series, tolerance: float) -> SeriesComparison:
    """Compare two series at every step that both have."""
    return SeriesComparison(**vars(align(a, b, tolerance)))


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
            (log.role, finding) for log in (self.a, self.b) for finding in log.curve_findings
        )

    def named(self, name: str) -> SeriesComparison | None:
        """Return the comparison of one series, if there is one."""
        return next((one for one in self.series if one.name == name), None)

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
        InputError: The logs have no series, or no step, in common.
    """
    shared = [name for name in wanted if name in a.series and name in b.series]
    if not shared:
        held = f"A has {', '.join(a.series)}, B has {', '.join(b.series)}"
        sentence = f"the logs share no series ({held}); name the same quantity with --columns"
        raise InputError("A, B", sentence)
    pairs = [compare_series(a.series[name], b.series[name], tolerance) for name in shared]
    compared = tuple(one for one in pairs if one.steps)
    if not compared:
        one, other = pairs[0].a.steps, pairs[0].b.steps
        held = f"A has {one[0]} to {one[-1]}, B has {other[0]} to {other[-1]}"
        sentence = f"the logs share no step ({held}); compare logs of the same steps"
        raise InputError("A, B", sentence)
    names = {one.name for one in compared}
    missing = tuple(name for name in wanted if name not in names)
    return Comparison(a, b, tolerance, compared, missing)
