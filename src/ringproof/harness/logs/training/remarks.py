"""What should be said beside the verdict: where to look first, and what the logs cannot show."""

from __future__ import annotations

from collections.abc import Iterator

from ringproof.harness.logs.training.columns import GRAD_NORM, LOSS
from ringproof.harness.logs.training.comparison import Comparison, SeriesComparison
from ringproof.harness.logs.training.log import TrainingLog
from ringproof.harness.logs.training.series import EXACT_DIGITS
from ringproof.harness.logs.training.verdict import FLOAT32_LEVEL, Kind

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
