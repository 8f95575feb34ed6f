"""A comparison of two training logs as text and as JSON. Its words are in ``logs/templates``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ringproof.findings.printable import showable
from ringproof.logs.rendering import rendered_lines
from ringproof.logs.training.compare import Comparison, SeriesComparison
from ringproof.logs.training.curves import curve_line
from ringproof.logs.training.kind import FLOAT32_LEVEL
from ringproof.logs.training.ratios import ratio_meaning, token_scale
from ringproof.logs.training.read import TrainingLog
from ringproof.logs.training.series import EXACT_DIGITS

COLUMNS = ("series", "verdict", "difference", "step", "A", "B", "relative")
VERSION = 1


def headline(result: Comparison) -> str:
    """Return the verdict in one line: ``jump in grad_norm at step 37, beyond 1e-09``."""
    return rendered_lines("parity_headline.txt", result=result)[0]


def readings(result: Comparison) -> list[str]:
    """Return what the differences point to."""
    return rendered_lines(
        "parity_readings.txt",
        result=result,
        float32_level=FLOAT32_LEVEL,
        ratio_meaning=ratio_meaning,
        token_scale=token_scale,
    )


def cautions(result: Comparison) -> list[str]:
    """Return what limits the verdict."""
    return rendered_lines("parity_cautions.txt", result=result, exact_digits=EXACT_DIGITS)


def remarks(result: Comparison) -> list[tuple[str, str]]:
    """Return readings, curves and cautions, each with the word that begins its line."""
    said = {
        "finding": readings(result),
        "curve": [f"{role}: {curve_line(one)}" for role, one in result.curves],
        "caution": cautions(result),
    }
    return [(kind, showable(text, 400)) for kind, texts in said.items() for text in texts]


def described(log: TrainingLog) -> str:
    """Return a log in one line: its path, format and steps."""
    one = next(iter(log.series.values()))
    every = f" every {one.interval:,}" if one.interval > 1 else ""
    names = ", ".join(
        name if series.column == name else f"{name} as {series.column}"
        for name, series in log.series.items()
    )
    span = f"{one.steps[0]:,} to {one.steps[-1]:,}{every}"
    told = showable(f"{log.path}: {log.format}, {len(one):,} steps, {span} ({names})", 300)
    return f"{log.role}  {told}"


def rows(result: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield the points of each series that are worth a line, as the cells of `COLUMNS`."""
    for one in result.series:
        said = showable(one.name), one.judgement.kind.value
        found = [("first beyond", one.first), ("largest", one.largest)]
        if one.largest is None and one.first is None:
            yield (*said, "none", "", "", "", "")
        for what, point in found:
            if point is not None:
                values = repr(point.a), repr(point.b), f"{point.relative:.3g}"
                yield (*said, what, f"{point.step:,}", *values)


def _table(result: Comparison) -> Iterator[str]:
    """Yield the rows with aligned cells; a series is named in its first row only."""
    cells = [COLUMNS, *rows(result)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    before: tuple[str, ...] = ()
    for row in cells:
        kept = ("", "", *row[2:]) if row[:2] == before else row
        before = row[:2]
        left = [cell.ljust(width) for cell, width in zip(kept[:3], widths, strict=False)]
        right = [cell.rjust(width) for cell, width in zip(kept[3:], widths[3:], strict=True)]
        yield "  ".join([*left, *right]).rstrip()


def as_text(result: Comparison) -> Iterator[str]:
    """Yield the verdict, one table, and the remarks, line by line."""
    yield from rendered_lines(
        "parity.txt",
        headline=headline(result),
        logs=[described(log) for log in (result.a, result.b)],
        table=list(_table(result)),
        remarks=remarks(result),
    )


def as_json(result: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data.

    ``verdict`` is that of the series ``series_name``, which diverges first. A number that is not
    finite becomes ``null``.
    """
    decides = result.deciding
    logs = (result.a, result.b)
    return {
        "version": VERSION,
        "verdict": decides.judgement.kind.value,
        "series_name": decides.name,
        "within": result.within,
        "tolerance": result.tolerance,
        "first_divergence": decides.first and asdict(decides.first),
        "series": {one.name: _series(one) for one in result.series},
        "readings": readings(result),
        "curves": {log.role: [asdict(one) for one in log.curve_findings] for log in logs},
        "cautions": cautions(result),
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
