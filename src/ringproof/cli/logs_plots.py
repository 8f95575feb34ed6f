"""The curves of two training logs as an HTML page.

The page needs nothing but the file itself: its curves are SVG.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ringproof.cli.page import asset, embedded, rendered
from ringproof.findings.printable import showable
from ringproof.logs.training.compare import Comparison, SeriesComparison
from ringproof.logs.training.output import COLUMNS, described, headline, remarks, rows

BUCKETS = 240
"""Parts of the steps; of each the extremes of both series and the largest difference are drawn."""

_LEFT, _WIDTH = 84, 1000
_RIGHT, _TOP, _VALUES, _GAP, _DIFFERENCE, _BOTTOM = 36, 8, 220, 30, 150, 40
_LOW = _TOP + _VALUES + _GAP
_BASE = _LOW + _DIFFERENCE
_ZERO = 20
"""Height of the strip below all decades, in which differences of 0 stand."""
_MAX_DECADES = 6
_DOTS = 120
"""Up to this many points each gets a dot which a line would hide."""

_Scale = Callable[[float], float]


def thinned(one: SeriesComparison) -> SeriesComparison:
    """Return few enough steps to draw, and still every peak and the first divergence."""
    columns = one.a_values, one.b_values, one.relative
    count, first = len(one.steps), one.places[:1]
    kept = set(range(count)) if count <= 4 * BUCKETS else {0, count - 1}
    for place in first:
        kept |= {place, max(0, place - 1)}
    for bucket in range(BUCKETS if len(kept) < count else 0):
        places = range(bucket * count // BUCKETS, (bucket + 1) * count // BUCKETS)
        for column in columns:
            known = [place for place in places if not math.isnan(column[place])]
            kept.update(sorted(known, key=column.__getitem__)[:: max(1, len(known) - 1)])
    order = sorted(kept)
    a, b, relative = (array("d", map(column.__getitem__, order)) for column in columns)
    return replace(
        one,
        steps=array("q", map(one.steps.__getitem__, order)),
        a_values=a,
        b_values=b,
        relative=relative,
        places=array("q", map(order.index, first)),
    )


def page(result: Comparison) -> str:
    """Return the page's text. Everything that came from outside is escaped by the template."""
    drawn = list(map(thinned, result.series))
    panels = []
    for one, curve in zip(result.series, drawn, strict=True):
        at = f" at step {one.first.step:,}" if one.first else ""
        said = f"{one.judgement.kind.value}{at}, {len(one.steps):,} common steps"
        complete = len(curve.steps) == len(one.steps)
        panels.append({"said": said, "complete": complete, **_picture(curve, result.tolerance)})
    return rendered(
        "parity.html",
        title=showable(f"Training logs: {headline(result)}", 400),
        within=result.within,
        style=asset("parity.css"),
        script=asset("parity.js"),
        logs=[described(log) for log in (result.a, result.b)],
        panels=panels,
        remarks=remarks(result),
        columns=COLUMNS,
        rows=list(rows(result)),
        data=embedded({"left": _LEFT, "width": _WIDTH, "panels": [_data(one) for one in drawn]}),
    )


def _data(one: SeriesComparison) -> dict[str, Any]:
    """Numbers as text: JSON has neither all digits for certain nor what is not a number."""
    return {
        "steps": list(one.steps),
        "a": list(map(repr, one.a_values)),
        "b": list(map(repr, one.b_values)),
        "relative": [f"{value:.3g}" for value in one.relative],
    }


def _picture(one: SeriesComparison, tolerance: float) -> dict[str, Any]:
    """Return what the template draws of one series, in the units of its SVG."""
    marked = [value for value in one.relative if math.isfinite(value) and value > 0]
    x, steps = _across(one.steps[0], one.steps[-1])
    y, levels = _upwards(list(filter(math.isfinite, one.a_values + one.b_values)), _TOP, _VALUES)
    y_apart, levels_apart = _decades(marked, tolerance)
    drawn = [("a", one.a_values, y), ("b", one.b_values, y)] if levels else []
    curves = []
    for name, values, scale in (*drawn, ("d", one.relative, y_apart)):
        pairs = zip(one.steps, values, strict=True)
        places = [(x(step), scale(v)) if math.isfinite(v) else None for step, v in pairs]
        dots = [place for place in places if place and len(places) <= _DOTS]
        curves.append((name, _path(places), dots))
    return {
        "name": showable(one.name, 400),
        "size": (_LEFT + _WIDTH + _RIGHT, _BASE + _BOTTOM),
        "frames": ((_TOP, _VALUES, one.name), (_LOW, _DIFFERENCE, "relative difference")),
        "left": _LEFT,
        "right": _LEFT + _WIDTH,
        "top": _TOP,
        "base": _BASE,
        "low": _LOW,
        "steps": steps,
        "levels": levels + levels_apart,
        "curves": curves,
        "equal": not marked and not any(map(math.isinf, one.relative)),
        "empty_at": _BASE - 2 * _ZERO,
        "tolerance": (y_apart(tolerance), f"{tolerance:g}") if tolerance > 0 else None,
        "odd": [x(s) for s, v in zip(one.steps, one.relative, strict=True) if math.isinf(v)],
        "first": x(one.first.step) if one.first else None,
    }


def _across(first: int, last: int) -> tuple[_Scale, list[tuple[float, int]]]:
    """Return the horizontal positions of steps in an SVG, and those of its labels."""

    def x(step: float) -> float:
        return _LEFT + _WIDTH * ((step - first) / (last - first) if last > first else 0.5)

    return x, [(x(step), int(step)) for step in ticks(first, last, 10) if step == int(step)]


def _upwards(
    values: Sequence[float], top: float, height: float
) -> tuple[_Scale, list[tuple[float, str]]]:
    """Return the heights of values in a frame, and its labels: none where no float can be one."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin
    span = high - low

    def y(value: float) -> float:
        return top + height * (high - value) / span

    levels = ticks(low, high) if math.isfinite(span) else []
    return y, [(y(tick), f"{tick:.6g}") for tick in levels]


def _decades(marked: Sequence[float], tolerance: float) -> tuple[_Scale, list[tuple[float, str]]]:
    """Return the heights of differences: 0 is below all decades, infinity above the frame."""
    bounds = [*marked, *([tolerance] if tolerance > 0 else [])] or [1e-9]
    low = math.floor(math.log10(min(bounds)))
    high = max(math.floor(math.log10(max(bounds))) + 1, low + 2)

    def y(value: float) -> float:
        if value == 0:
            return _BASE - _ZERO / 3
        return _LOW + (_DIFFERENCE - _ZERO) * (high - math.log10(value)) / (high - low)

    powers = range(low, high + 1, -(-(high - low) // _MAX_DECADES))
    return y, [(y(10.0**power), f"1e{power}") for power in powers]


def _path(places: Iterable[tuple[float, float] | None]) -> str:
    """Return the path of a curve, which ``None`` interrupts."""
    path, move = "", "M"
    for place in places:
        path += f"{move}{place[0]:.1f} {place[1]:.1f}" if place else ""
        move = "L" if place else "M"
    return path


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers from ``low`` to ``high``, at least one where there is one.

    >>> ticks(0.0, 10.0), ticks(2.1, 3.4)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [2.25, 2.5, 2.75, 3.0, 3.25])
    """
    rough = (high - low) / most
    if not rough > 0 or not math.isfinite(rough):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)] or [low]
