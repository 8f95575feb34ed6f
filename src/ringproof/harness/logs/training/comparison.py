"""Two training logs compared: each series with its verdict and remarks, and the result as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ringproof.errors import InputError
from ringproof.harness.logs.training.log import TrainingLog
from ringproof.harness.logs.training.series import EXACT_DIGITS, GRAD_NORM, LOSS, Series
from ringproof.harness.logs.training.verdict import (
    FLOAT32_LEVEL,
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


_AT_ONCE = (Kind.JUMP, Kind.START)


def readings(result: Comparison) -> Iterator[str]:
    """What the findings point to."""
    for one in result.series:
        yield from _of_series(one)
    yield from _order(result)
    yield from _parts(result)


def _of_series(one: SeriesComparison) -> Iterator[str]:
    judgement, first = one.judgement, one.first
    if judgement.ratio is not None:
        differing = "" if judgement.period is None else "differing "
        where = "the loss normaliser" if one.name != GRAD_NORM else "how gradients are reduced"
        yield (
            f"{one.name}: constant ratio {judgement.ratio.ratio:.4g} (B / A) over "
            f"{judgement.ratio.steps:,} {differing}steps: look at {where}"
        )
    elif judgement.kind is Kind.START and first is not None and first.relative <= FLOAT32_LEVEL:
        yield f"{one.name}: the first difference is no more than rounding in float32"
    if judgement.kind is Kind.JUMP and first is not None:
        before = f"{judgement.largest_before:.1e}" if judgement.largest_before else "0"
        yield f"{one.name}: at most {before} apart before step {first.step:,}"
    if one.earlier_jump is not None:
        yield (
            f"{one.name}: drift at the tolerance; before that, a jump to "
            f"{one.earlier_jump.relative:.1e} at step {one.earlier_jump.step:,}"
        )
    if one.later_jump is not None:
        yield (
            f"{one.name}: drift at first, then a jump to {one.later_jump.relative:.1e} at step "
            f"{one.later_jump.step:,}"
        )
    if judgement.kind is Kind.NAN and first is None:
        yield f"{one.name}: both end in steps that are not finite numbers, which proves nothing"
    if judgement.period is not None:
        period = judgement.period
        yield (
            f"{one.name}: beyond the tolerance at every {_ordinal(period.length)} step from "
            f"{period.first:,} to {period.last:,} ({period.beyond:,} of "
            f"{period.beyond + period.within:,})"
        )
    if one.healed and one.last is not None and judgement.period is None:
        yield (
            f"{one.name}: beyond the tolerance at {one.found.beyond:,} steps, the last is "
            f"{one.last.step:,}; within it at the {one.healed:,} after that"
        )


def _ordinal(number: int) -> str:
    """The number as a position.

    >>> [_ordinal(number) for number in (2, 3, 4, 11, 21, 112)]
    ['2nd', '3rd', '4th', '11th', '21st', '112th']
    """
    teen = number % 100 in (11, 12, 13)
    ending = "th" if teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def _order(result: Comparison) -> Iterator[str]:
    """Which of loss and gradient norm left first says which half of the step to look at."""
    found = {one.name: one for one in result.series}
    loss, norm = found.get(LOSS), found.get(GRAD_NORM)
    if loss is None or norm is None or loss.a.interval > 1 or loss.b.interval > 1:
        return
    if norm.first is None or norm.judgement.kind not in _AT_ONCE:
        return
    if loss.first is None or loss.first.step > norm.first.step:
        yield (
            f"the grad norm leaves at step {norm.first.step:,}, the loss not until later: look at "
            "the backward pass and the gradient reduction of that step"
        )
    elif loss.first.step == norm.first.step and loss.judgement.ratio is None:
        started = loss.judgement.kind is Kind.START
        also = "the initial weights, the batch" if started else "the batch"
        yield (
            f"loss and grad norm leave at the same step {norm.first.step:,}: look at {also} and "
            "the forward pass of that step"
        )


def _parts(result: Comparison) -> Iterator[str]:
    """A trainer's loss may be a sum, of which Megatron prints the parts."""
    loss = next((one for one in result.series if one.name == LOSS), None)
    if loss is None or loss.within or loss.a.column == loss.b.column:
        return
    for log in (result.a, result.b):
        if "losses.lm" in log.names and log.series[LOSS].column != "losses.lm":
            yield (
                f"the loss of {log.role} may be the sum of its losses: the part is compared with "
                "--columns 'loss=losses.lm|lm loss'"
            )


def cautions(result: Comparison) -> Iterator[str]:
    """What limits the verdict."""
    for log in (result.a, result.b):
        yield from (f"{log.role}: {note}" for note in log.notes)
    if result.a.path == result.b.path:
        yield "A and B are the same file"
    for name in result.missing:
        holders = [log.role for log in (result.a, result.b) if name in log.series]
        where = f"only {holders[0]} has it" if len(holders) == 1 else "not in the same steps"
        yield f"{name} is not compared: {where if holders else 'neither log has it'}"
    yield from _lengths(result.series[0])
    yield from _intervals(result)
    for one in result.series:
        yield from _resolved(one, result)
        if one.found.undefined:
            yield f"{one.name}: {one.found.undefined:,} steps are not finite in both: not compared"


def _lengths(one: SeriesComparison) -> Iterator[str]:
    alone = [
        f"{count:,} of {role}"
        for role, count in (("A", one.common.only_a), ("B", one.common.only_b))
        if count
    ]
    if alone:
        steps = one.common.steps
        yield (
            f"compared at {len(steps):,} common steps, {steps[0]:,} to {steps[-1]:,}; "
            f"{' and '.join(alone)} have no counterpart"
        )


def _intervals(result: Comparison) -> Iterator[str]:
    one = next((one for one in result.series if one.name == LOSS), None)
    if one is None or one.a.interval == one.b.interval:
        return
    averaged = [log.role for log in (result.a, result.b) if log.averaged]
    if averaged:
        yield (
            f"A has a line for every {_steps(one.a.interval)}, B for every "
            f"{_steps(one.b.interval)}, and the loss of {' and '.join(averaged)} is a mean over "
            "its interval: log both at the same one"
        )


def _steps(interval: int) -> str:
    return "step" if interval == 1 else f"{interval:,} steps"


def _resolved(one: SeriesComparison, result: Comparison) -> Iterator[str]:
    """Print that is coarser than the tolerance."""
    low, high = one.resolution
    if high > result.tolerance:
        span = f"{low:.0e}" if high < 1.5 * low else f"{low:.0e} to {high:.0e}"
        printed = f"the log resolves {span} of the {one.name}, not {result.tolerance:g}"
        yield f"{printed}: equal means equal as printed; use JSON lines"
        if one.found.rounding and one.a.precision.rounded and one.b.precision.rounded:
            yield (
                f"{one.name}: {one.found.rounding:,} steps differ by no more than one unit in the "
                "last printed place, which can be rounding"
            )
    elif not high:
        for log in (result.a, result.b):
            yield from _digits(one, log, result.tolerance)


def _digits(one: SeriesComparison, log: TrainingLog, tolerance: float) -> Iterator[str]:
    """CSV and foreign JSON may be rounded without saying so; the longest value shows it."""
    if log.exact or log.averaged:
        return
    digits = log.series[one.name].digits
    if 0 < digits < EXACT_DIGITS and tolerance < 10.0 ** (1 - digits):
        yield (
            f"{log.role}: no value of its {one.name} has more than {digits} digits, so it resolves "
            f"{10.0 ** (1 - digits):.0e} at best, not {tolerance:g}; print all digits"
        )


VERSION = 1


def as_json(result: Comparison) -> dict[str, Any]:
    """The comparison as JSON can say it.

    ``verdict`` is that of the series ``series_name``, which diverges first. A number that is not
    finite becomes ``null``.
    """
    decides = result.deciding
    return {
        "version": VERSION,
        "verdict": decides.judgement.kind.value,
        "series_name": decides.name,
        "within": result.within,
        "tolerance": result.tolerance,
        "first_divergence": _point_data(decides.first),
        "series": {one.name: _series(one) for one in result.series},
        "readings": list(readings(result)),
        "cautions": list(cautions(result)),
        "a": _log(result.a),
        "b": _log(result.b),
    }


def _series(one: SeriesComparison) -> dict[str, Any]:
    judgement = one.judgement
    ratio = judgement.ratio
    return {
        "verdict": judgement.kind.value,
        "within": one.within,
        "common_steps": len(one.common.steps),
        "first_step": one.common.steps[0],
        "last_step": one.common.steps[-1],
        "only_a": one.common.only_a,
        "only_b": one.common.only_b,
        "steps_beyond": one.found.beyond,
        "steps_not_finite_in_both": one.found.undefined,
        "first_beyond": _point_data(one.first),
        "last_beyond": _point_data(one.last),
        "largest": _point_data(one.largest),
        "earlier_jump": _point_data(one.earlier_jump),
        "later_jump": _point_data(one.later_jump),
        "largest_before": judgement.largest_before,
        "noise_level": judgement.level,
        "constant_ratio": None
        if ratio is None
        else {"b_over_a": ratio.ratio, "steps": ratio.steps},
        "period": None if judgement.period is None else asdict(judgement.period),
        "print_resolves": list(one.resolution) if one.resolution[1] else None,
    }


def _point_data(point: Point | None) -> dict[str, Any] | None:
    return None if point is None else asdict(point)


def _log(log: TrainingLog) -> dict[str, Any]:
    return {
        "path": log.path,
        "format": log.format,
        "series": {
            name: {
                "column": series.column,
                "steps": len(series),
                "first_step": series.steps[0],
                "last_step": series.steps[-1],
                "interval": series.interval,
                "repeated_steps": series.repeated,
            }
            for name, series in log.series.items()
        },
        "notes": list(log.notes),
    }
