"""Two training logs compared: what the differences point to, in words, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ringproof.findings.printable import showable
from ringproof.logs.training.curves import curve_line
from ringproof.logs.training.log import TrainingLog
from ringproof.logs.training.series import EXACT_DIGITS, GRAD_NORM, LOSS
from ringproof.logs.training.verdict import (
    FLOAT32_LEVEL,
    Comparison,
    Kind,
    SeriesComparison,
)

COLUMNS = ("series", "verdict", "difference", "step", "A", "B", "relative")
VERSION = 1


def as_text(result: Comparison) -> Iterator[str]:
    """Yield the verdict, one table, and the remarks, line by line."""
    yield f"verdict: {headline(result)}"
    yield from (f"  {log.role}  {described(log)}" for log in (result.a, result.b))
    yield ""
    table = [COLUMNS, *rows(result)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    before: tuple[str, ...] = ()
    for row in table:
        shown = ("", "", *row[2:]) if row[:2] == before else row
        cells = [
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(shown, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
        before = row[:2]
    yield ""
    yield from (f"{kind}: {text}" for kind, text in remarks(result))


def headline(result: Comparison) -> str:
    """The verdict in one line: ``jump in grad_norm at step 37, beyond 1e-09``."""
    decides = result.deciding
    kind = decides.judgement.kind
    if result.within:
        return f"{_agreement(result)} over {len(decides.steps):,} common steps"
    if decides.first is None:
        return f"{kind.value} in {decides.name}"
    step, beyond = f"step {decides.first.step:,}", f"beyond {result.tolerance:g}"
    if kind is Kind.START:
        return f"{decides.name} is {kind.value} ({step}), {beyond}"
    return f"{kind.value} in {decides.name} at {step}, {beyond}"


def _agreement(result: Comparison) -> str:
    decides = result.deciding
    hidden = max(one.resolution[1] for one in result.series)
    if decides.judgement.kind is Kind.EQUAL:
        return "equal to the last printed digit" if hidden else "equal"
    shown_so = ", as far as the logs show," if hidden > result.tolerance else ""
    apart = f" (at most {decides.largest.relative:.2g})" if decides.largest else ""
    return f"within {result.tolerance:g}{apart}{shown_so}"


def described(log: TrainingLog) -> str:
    """A log in one line: its path, format and steps."""
    one = next(iter(log.series.values()))
    every = f" every {one.interval:,}" if one.interval > 1 else ""
    names = ", ".join(
        name if series.column == name else f"{name} as {series.column}"
        for name, series in log.series.items()
    )
    span = f"{one.steps[0]:,} to {one.steps[-1]:,}{every}"
    return showable(f"{log.path}: {log.format}, {len(one):,} steps, {span} ({names})", 300)


def remarks(result: Comparison) -> Iterator[tuple[str, str]]:
    """Findings and cautions, each with the word that begins it."""
    yield from (("finding", showable(text, 400)) for text in readings(result))
    yield from (("curve", f"{role}: {curve_line(one)}") for role, one in result.curves)
    yield from (("caution", showable(text, 400)) for text in cautions(result))


def rows(result: Comparison) -> Iterator[tuple[str, ...]]:
    """The points of each series that are worth a line, as the cells of `COLUMNS`."""
    for one in result.series:
        said = showable(one.name), one.judgement.kind.value
        points = [("first beyond", one.first), ("largest", one.largest)]
        found = [(what, point) for what, point in points if point is not None]
        if not found:
            yield (*said, "none", "", "", "", "")
        for what, point in found:
            values = repr(point.a), repr(point.b), f"{point.relative:.3g}"
            yield (*said, what, f"{point.step:,}", *values)


def readings(result: Comparison) -> Iterator[str]:
    """Yield what the differences point to."""
    for one in result.series:
        yield from (f"{one.name}: {text}" for text in _of_series(one))
    yield from _order(result)
    yield from _parts(result)


def _of_series(one: SeriesComparison) -> Iterator[str]:
    judgement, first, last = one.judgement, one.first, one.last
    kind, period = judgement.kind, judgement.period
    if judgement.ratio is not None:
        differing = "" if period is None else "differing "
        where = "the loss normaliser" if one.name != GRAD_NORM else "how gradients are reduced"
        yield (
            f"constant ratio {judgement.ratio.ratio:.4g} (B / A) over "
            f"{judgement.ratio.steps:,} {differing}steps: look at {where}"
        )
    elif kind is Kind.START and first is not None and first.relative <= FLOAT32_LEVEL:
        yield "the first difference is no more than rounding in float32"
    if kind is Kind.JUMP and first is not None:
        before = f"{judgement.largest_before:.1e}" if judgement.largest_before else "0"
        yield f"at most {before} apart before step {first.step:,}"
    if jump := judgement.earlier_jump:
        said = f"a jump to {jump.relative:.1e} at step {jump.step:,}"
        yield f"drift at the tolerance; before that, {said}"
    if jump := judgement.later_jump:
        yield f"drift at first, then a jump to {jump.relative:.1e} at step {jump.step:,}"
    if kind is Kind.NAN and first is None:
        yield "both end in steps that are not finite numbers, which proves nothing"
    if period is not None:
        yield (
            f"beyond the tolerance at every {_ordinal(period.length)} step from "
            f"{period.first:,} to {period.last:,} ({period.beyond:,} of "
            f"{period.beyond + period.within:,})"
        )
    elif one.healed and last is not None:
        yield (
            f"beyond the tolerance at {len(one.places):,} steps, the last is {last.step:,}; "
            f"within it at the {one.healed:,} after that"
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
    if norm.first is None or norm.judgement.kind not in (Kind.JUMP, Kind.START):
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
    """Yield what limits the verdict."""
    logs = (result.a, result.b)
    for log in logs:
        yield from (f"{log.role}: {note}" for note in log.notes)
    if result.a.path == result.b.path:
        yield "A and B are the same file"
    for name in result.missing:
        holders = [log.role for log in logs if name in log.series]
        where = f"only {holders[0]} has it" if len(holders) == 1 else "not in the same steps"
        yield f"{name} is not compared: {where if holders else 'neither log has it'}"
    yield from _lengths(result.series[0])
    yield from _intervals(result)
    for one in result.series:
        yield from _resolved(one, result)
        if one.undefined:
            yield f"{one.name}: {one.undefined:,} steps are not finite in both: not compared"


def _lengths(one: SeriesComparison) -> Iterator[str]:
    common = len(one.steps)
    sides = (("A", len(one.a)), ("B", len(one.b)))
    alone = [f"{count - common:,} of {role}" for role, count in sides if count > common]
    if alone:
        yield (
            f"compared at {common:,} common steps, {one.steps[0]:,} to {one.steps[-1]:,}; "
            f"{' and '.join(alone)} have no counterpart"
        )


def _intervals(result: Comparison) -> Iterator[str]:
    one = next((one for one in result.series if one.name == LOSS), None)
    averaged = [log.role for log in (result.a, result.b) if log.averaged]
    if one is not None and averaged and one.a.interval != one.b.interval:
        a, b = (
            "step" if series.interval == 1 else f"{series.interval:,} steps"
            for series in (one.a, one.b)
        )
        yield (
            f"A has a line for every {a}, B for every {b}, and the loss of "
            f"{' and '.join(averaged)} is a mean over its interval: log both at the same one"
        )


def _resolved(one: SeriesComparison, result: Comparison) -> Iterator[str]:
    """Print that is coarser than the tolerance."""
    low, high = one.resolution
    if high > result.tolerance:
        span = f"{low:.0e}" if high < 1.5 * low else f"{low:.0e} to {high:.0e}"
        printed = f"the log resolves {span} of the {one.name}, not {result.tolerance:g}"
        yield f"{printed}: equal means equal as printed; use JSON lines"
        if one.rounding and one.a.precision.rounded and one.b.precision.rounded:
            yield (
                f"{one.name}: {one.rounding:,} steps differ by no more than one unit in the "
                "last printed place, which can be rounding"
            )
    for log in () if high else (result.a, result.b):
        # CSV and foreign JSON may be rounded without saying so; the longest value shows it.
        digits = EXACT_DIGITS if log.exact or log.averaged else log.series[one.name].digits
        if 0 < digits < EXACT_DIGITS and result.tolerance < 10.0 ** (1 - digits):
            yield (
                f"{log.role}: no value of its {one.name} has more than {digits} digits, so it "
                f"resolves {10.0 ** (1 - digits):.0e} at best, not {result.tolerance:g}; "
                "print all digits"
            )


def as_json(result: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data.

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
        "first_divergence": decides.first and asdict(decides.first),
        "series": {one.name: _series(one) for one in result.series},
        "readings": list(readings(result)),
        "curves": {
            log.role: [asdict(one) for role, one in result.curves if role == log.role]
            for log in (result.a, result.b)
        },
        "cautions": list(cautions(result)),
        "a": _log(result.a),
        "b": _log(result.b),
    }


def _series(one: SeriesComparison) -> dict[str, Any]:
    judgement, ratio = one.judgement, one.judgement.ratio
    points = {
        "first_beyond": one.first,
        "last_beyond": one.last,
        "largest": one.largest,
        "earlier_jump": judgement.earlier_jump,
        "later_jump": judgement.later_jump,
    }
    return {
        "verdict": judgement.kind.value,
        "within": one.within,
        "common_steps": len(one.steps),
        "first_step": one.steps[0],
        "last_step": one.steps[-1],
        "only_a": len(one.a) - len(one.steps),
        "only_b": len(one.b) - len(one.steps),
        "steps_beyond": len(one.places),
        "steps_not_finite_in_both": one.undefined,
        **{name: point and asdict(point) for name, point in points.items()},
        "largest_before": judgement.largest_before,
        "noise_level": judgement.level,
        "constant_ratio": ratio and {"b_over_a": ratio.ratio, "steps": ratio.steps},
        "period": judgement.period and asdict(judgement.period),
        "print_resolves": list(one.resolution) if one.resolution[1] else None,
    }


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
