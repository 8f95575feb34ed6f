"""A comparison as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ringproof.harness.logs.training.comparison import Comparison, Point, SeriesComparison
from ringproof.harness.logs.training.log import TrainingLog
from ringproof.harness.logs.training.remarks import cautions, readings

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
        "first_divergence": _point(decides.first),
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
        "first_beyond": _point(one.first),
        "last_beyond": _point(one.last),
        "largest": _point(one.largest),
        "earlier_jump": _point(one.earlier_jump),
        "later_jump": _point(one.later_jump),
        "largest_before": judgement.largest_before,
        "noise_level": judgement.level,
        "constant_ratio": None
        if ratio is None
        else {"b_over_a": ratio.ratio, "steps": ratio.steps},
        "period": None if judgement.period is None else asdict(judgement.period),
        "print_resolves": list(one.resolution) if one.resolution[1] else None,
    }


def _point(point: Point | None) -> dict[str, Any] | None:
    if point is None:
        return None
    return {"step": point.step, "a": point.a, "b": point.b, "relative": point.relative}


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
