"""The curves of two training logs, as one HTML page or as a PNG: both runs, and their difference.

The HTML page needs nothing but the file itself: its curves are SVG.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringproof.cli.page import asset, embedded, rendered
from ringproof.errors import InputError
from ringproof.files import write_atomically
from ringproof.harness.logs.training.report import COLUMNS, described, headline, remarks, rows
from ringproof.harness.logs.training.verdict import Comparison, SeriesComparison
from ringproof.harness.reports.printable import showable

BUCKETS = 240
"""Parts of the steps; of each the extremes of both series and the largest difference are drawn."""

LEFT, WIDTH = 84, 1000
_RIGHT, _TOP, _VALUES, _GAP, _DIFFERENCE, _BOTTOM = 36, 8, 220, 30, 150, 40
_LOW = _TOP + _VALUES + _GAP
_BASE = _LOW + _DIFFERENCE
_ZERO = 20
"""Height of the strip below all decades, in which differences of 0 stand."""
_MAX_DECADES = 6
_DOTS = 120
"""Up to this many points each gets a dot: a line alone would hide single ones."""

_A, _B, _D, _MARK = "#3b6fd4", "#e07a1f", "#7a4fb5", "#c03030"


@dataclass(frozen=True)
class Curves:
    """What is drawn of one series: the same steps for both runs and their difference.

    Attributes:
        relative: NaN where it is not defined, infinite where only one value is finite.
        complete: Whether every common step is drawn.
        first: Step of the first divergence.
    """

    name: str
    steps: tuple[int, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    relative: tuple[float, ...]
    complete: bool
    first: int | None

    def x(self, step: float) -> float:
        """Horizontal position of a step in the SVG."""
        first, last = self.steps[0], self.steps[-1]
        return LEFT + WIDTH * ((step - first) / (last - first) if last > first else 0.5)


def curves(one: SeriesComparison) -> Curves:
    """Return few enough points to draw, and still every peak."""
    columns = one.a_values, one.b_values, one.relative
    count = len(one.steps)
    kept = set(range(count)) if count <= 4 * BUCKETS else {0, count - 1}
    if one.places:
        kept |= {one.places[0], max(0, one.places[0] - 1)}
    for bucket in range(BUCKETS if len(kept) < count else 0):
        places = range(bucket * count // BUCKETS, (bucket + 1) * count // BUCKETS)
        for column in columns:
            known = [place for place in places if not math.isnan(column[place])]
            kept.update(sorted(known, key=column.__getitem__)[:: max(1, len(known) - 1)])
    order = sorted(kept)
    a, b, apart = (tuple(column[place] for place in order) for column in columns)
    steps = tuple(one.steps[place] for place in order)
    divergence = None if one.first is None else one.first.step
    return Curves(one.name, steps, a, b, apart, len(order) == count, divergence)


def page(result: Comparison) -> str:
    """Return the page's text. Everything that came from outside is escaped by the template."""
    drawn = [curves(one) for one in result.series]
    panels = []
    for one, curve in zip(result.series, drawn, strict=True):
        at = f" at step {one.first.step:,}" if one.first else ""
        said = f"{one.judgement.kind.value}{at}, {len(one.steps):,} common steps"
        panels.append({"said": said, "curve": curve, **_picture(curve, result.tolerance)})
    return rendered(
        "parity.html",
        title=showable(f"Training logs: {headline(result)}", 400),
        within=result.within,
        style=asset("parity.css"),
        script=asset("parity.js"),
        logs=[f"{log.role}  {described(log)}" for log in (result.a, result.b)],
        panels=panels,
        remarks=list(remarks(result)),
        columns=COLUMNS,
        rows=list(rows(result)),
        data=embedded({"left": LEFT, "width": WIDTH, "panels": [_data(one) for one in drawn]}),
    )


def _data(one: Curves) -> dict[str, Any]:
    """Numbers as text: JSON has neither all digits for certain nor what is not a number."""
    return {
        "steps": one.steps,
        "a": list(map(repr, one.a)),
        "b": list(map(repr, one.b)),
        "relative": [f"{value:.3g}" for value in one.relative],
    }


def _picture(one: Curves, tolerance: float) -> dict[str, Any]:
    """Return what the template draws of one series, in the units of its SVG."""
    marked = [value for value in one.relative if math.isfinite(value) and value > 0]
    values = _values(one)
    relative = _relative(one, marked, tolerance)
    steps = [int(step) for step in ticks(one.steps[0], one.steps[-1], 10) if step == int(step)]
    return {
        "name": showable(one.name, 400),
        "size": (LEFT + WIDTH + _RIGHT, _BASE + _BOTTOM),
        "frames": ((_TOP, _VALUES, one.name), (_LOW, _DIFFERENCE, "relative difference")),
        "left": LEFT,
        "right": LEFT + WIDTH,
        "top": _TOP,
        "base": _BASE,
        "low": _LOW,
        "steps": [(one.x(step), step) for step in steps],
        "levels": values.levels + relative.levels,
        "curves": values.curves + relative.curves,
        "equal": not marked and not any(map(math.isinf, one.relative)),
        "empty_at": _BASE - 2 * _ZERO,
        "tolerance": (relative.y(tolerance), f"{tolerance:g}") if tolerance > 0 else None,
        "odd": [one.x(s) for s, v in zip(one.steps, one.relative, strict=True) if math.isinf(v)],
        "first": None if one.first is None else one.x(one.first),
    }


@dataclass(frozen=True)
class _Axis:
    """One of the two frames: heights with their labels, and each curve's path and dots."""

    y: Any
    levels: list[tuple[float, str]]
    curves: list[tuple[str, str, list[tuple[float, float]]]]


def _values(one: Curves) -> _Axis:
    finite = [value for value in (*one.a, *one.b) if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin
    span = high - low

    def y(value: float) -> float:
        return _TOP + _VALUES * (high - value) / span

    if not math.isfinite(span):
        return _Axis(y, [], [])
    levels = [(y(tick), f"{tick:.6g}") for tick in ticks(low, high)]
    return _Axis(y, levels, [_curve("a", one, one.a, y), _curve("b", one, one.b, y)])


def _relative(one: Curves, marked: Sequence[float], tolerance: float) -> _Axis:
    """Zero stands below all decades, an infinite difference above the frame."""
    bounds = [*marked, *([tolerance] if tolerance > 0 else [])] or [1e-9]
    low = math.floor(math.log10(min(bounds)))
    high = max(math.floor(math.log10(max(bounds))) + 1, low + 2)

    def y(value: float) -> float:
        if value == 0:
            return _BASE - _ZERO / 3
        return _LOW + (_DIFFERENCE - _ZERO) * (high - math.log10(value)) / (high - low)

    powers = range(low, high + 1, -(-(high - low) // _MAX_DECADES))
    levels = [(y(10.0**power), f"1e{power}") for power in powers]
    return _Axis(y, levels, [_curve("d", one, one.relative, y)])


def _curve(
    name: str, one: Curves, values: Sequence[float], y: Any
) -> tuple[str, str, list[tuple[float, float]]]:
    """Return the path of a curve, interrupted where a value is not finite, and its dots."""
    moves, path, dots = "M", "", []
    for step, value in zip(one.steps, values, strict=True):
        if not math.isfinite(value):
            moves = "M"
            continue
        dots.append((one.x(step), y(value)))
        path += f"{moves}{dots[-1][0]:.1f} {dots[-1][1]:.1f}"
        moves = "L"
    return name, path, dots if len(one.steps) <= _DOTS else []


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


def write_picture(result: Comparison, destination: str) -> None:
    """Draw all compared series, one beside the other, as a PNG.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # no backend, no window, no state
    except ImportError as error:
        remedy = "pip install 'ringproof[plots]', or use --html"
        raise InputError("--png", None, "needs the package matplotlib", remedy) from error
    count = len(result.series)
    figure = Figure(figsize=(6.4 * count, 6.0), layout="constrained")
    figure.suptitle(headline(result), fontsize=12)
    axes = figure.subplots(2, count, squeeze=False, height_ratios=(3, 2), sharex="col")
    for place, one in enumerate(result.series):
        drawn = curves(one)
        values, difference = axes[0][place], axes[1][place]
        values.plot(drawn.steps, _finite(drawn.a), color=_A, linewidth=2.6, alpha=0.75, label="A")
        dashed = {"color": _B, "linewidth": 1.2, "linestyle": (0, (4, 2))}
        values.plot(drawn.steps, _finite(drawn.b), label="B", **dashed)
        values.set_ylabel(drawn.name)
        values.legend(loc="best", frameon=False)
        _draw_difference(difference, drawn, result.tolerance)
        for axis in (values, difference):
            axis.grid(alpha=0.25)
            if drawn.first is not None:
                axis.axvline(drawn.first, color=_MARK, linewidth=1, alpha=0.7)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130)
    write_atomically(Path(destination), stream.getvalue(), field="--png")


def _finite(values: Sequence[float]) -> list[float]:
    """Infinite values are gaps, as NaN is."""
    return [value if math.isfinite(value) else math.nan for value in values]


def _draw_difference(axis: Any, one: Curves, tolerance: float) -> None:
    pairs = list(zip(one.steps, one.relative, strict=True))
    points = [(step, value) for step, value in pairs if math.isfinite(value) and value > 0]
    lone = [step for step, value in pairs if math.isinf(value)]
    if points:
        axis.set_yscale("log")
        axis.plot(*zip(*points, strict=True), color=_D, marker=".", markersize=3, lw=0.8)
    else:
        said = "" if lone else "no difference"
        axis.text(0.5, 0.5, said, ha="center", va="center", transform=axis.transAxes)
        axis.set_yticks([])
    if lone:  # an infinite difference has no place on the axis: it is marked above
        above = {"transform": axis.get_xaxis_transform(), "clip_on": False}
        axis.plot(lone, [1.03] * len(lone), "x", color=_MARK, ms=4, **above)
    if tolerance > 0 and points:
        axis.axhline(tolerance, color=_MARK, linestyle="--", linewidth=1)
        place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        text = f"tolerance {tolerance:g}"
        axis.annotate(text, (0.99, tolerance), fontsize=8, color=_MARK, **place)
    axis.set_ylabel("relative difference")
    axis.set_xlabel("step")
