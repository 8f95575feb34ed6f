"""Two training logs compared, as one page that needs nothing but the file itself.

The curves are SVG: both runs above, their relative difference below.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from ringproof.cli.logs_parity_text import COLUMNS, described, headline, remarks, rows
from ringproof.cli.page import asset, embedded
from ringproof.harness.logs.training.comparison import Comparison
from ringproof.harness.logs.training.drawing import Curves, curves
from ringproof.harness.reports.printable import showable

LEFT, WIDTH = 84, 1000
_RIGHT, _TOP, _VALUES, _GAP, _DIFFERENCE, _BOTTOM = 36, 8, 220, 30, 150, 40
_LOW = _TOP + _VALUES + _GAP
_BASE = _LOW + _DIFFERENCE
_ZERO = 20
"""Height of the strip below all decades, in which differences of 0 stand."""
_MAX_DECADES = 6
_DOTS = 120
"""Up to this many points each gets a dot: a line alone would hide single ones."""


def page(result: Comparison) -> str:
    """The page's text. Everything that came from outside is escaped by the template."""
    environment = SandboxedEnvironment(
        loader=PackageLoader("ringproof.cli", "pages"), autoescape=True, undefined=StrictUndefined
    )
    drawn = curves(result)
    return environment.get_template("parity.html").render(
        title=showable(f"Training logs: {headline(result)}", 400),
        within=result.within,
        style=asset("parity.css"),
        script=asset("parity.js"),
        logs=[f"{log.role}  {described(log)}" for log in (result.a, result.b)],
        panels=list(_panels(result, drawn)),
        remarks=list(remarks(result)),
        columns=COLUMNS,
        rows=list(rows(result)),
        data=embedded(_data(drawn)),
    )


def _panels(result: Comparison, drawn: Sequence[Curves]) -> Iterator[dict[str, Any]]:
    for one, curve in zip(result.series, drawn, strict=True):
        at = f" at step {one.first.step:,}" if one.first else ""
        yield {
            "name": showable(one.name, 400),
            "said": f"{one.judgement.kind.value}{at}, {len(one.common.steps):,} common steps",
            "picture": "\n".join(picture(curve, result.tolerance)),
            "complete": curve.complete,
        }


def _data(drawn: Sequence[Curves]) -> dict[str, Any]:
    """Numbers as text: JSON has neither all digits for certain nor what is not a number."""
    panels = [
        {
            "steps": one.steps,
            "a": list(map(repr, one.a)),
            "b": list(map(repr, one.b)),
            "relative": [f"{value:.3g}" for value in one.relative],
        }
        for one in drawn
    ]
    return {"left": LEFT, "width": WIDTH, "panels": panels}


def picture(one: Curves, tolerance: float) -> Iterator[str]:
    """The lines of one ``svg`` element."""
    full = LEFT + WIDTH + _RIGHT
    label = html.escape(f"{one.name} of A and B by step, and their relative difference")
    yield (
        f'<svg viewBox="0 0 {full} {_BASE + _BOTTOM}" role="img" tabindex="0" aria-label="{label}">'
    )
    yield from _frame(_TOP, _VALUES, one.name)
    yield from _frame(_LOW, _DIFFERENCE, "relative difference")
    yield from _step_axis(one)
    yield from _values(one)
    yield from _relative(one, tolerance)
    if one.first is not None:
        x = _x(one, one.first)
        yield f'<line class="first" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BASE}"/>'
    yield f'<line class="rule" y1="{_TOP}" y2="{_BASE}" visibility="hidden"/>'
    yield "</svg>"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, at least one where there is one.

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


def _frame(top: float, height: float, name: str) -> Iterator[str]:
    yield f'<rect class="frame" x="{LEFT}" y="{top}" width="{WIDTH}" height="{height}"/>'
    yield (
        f'<text class="what" transform="translate(14 {top + height / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{html.escape(name)}</text>'
    )


def _step_axis(one: Curves) -> Iterator[str]:
    for step in ticks(one.steps[0], one.steps[-1], 10):
        if step != int(step):
            continue
        x = _x(one, step)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_BASE}" y2="{_BASE + 5}"/>'
        yield f'<text x="{x:.1f}" y="{_BASE + 18}" text-anchor="middle">{int(step):,}</text>'
    middle = LEFT + WIDTH / 2
    yield f'<text class="what" x="{middle}" y="{_BASE + 35}" text-anchor="middle">step</text>'


def _values(one: Curves) -> Iterator[str]:
    finite = [value for value in (*one.a, *one.b) if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin
    span = high - low
    if not math.isfinite(span):
        return

    def y(value: float) -> float:
        return _TOP + _VALUES * (high - value) / span

    for tick in ticks(low, high):
        yield from _level(y(tick), f"{tick:.6g}")
    for name, values in (("a", one.a), ("b", one.b)):
        yield from _curve(name, one, [y(v) if math.isfinite(v) else None for v in values])


def _relative(one: Curves, tolerance: float) -> Iterator[str]:
    """Zero stands below all decades, an infinite difference above the frame."""
    seen = [value for value in one.relative if math.isfinite(value) and value > 0]
    if not seen:
        said = "no difference at any step" if not any(map(math.isinf, one.relative)) else ""
        middle = LEFT + WIDTH / 2, _BASE - 2 * _ZERO
        yield f'<text x="{middle[0]}" y="{middle[1]}" text-anchor="middle">{said}</text>'
    bounds = [*seen, *([tolerance] if tolerance > 0 else [])] or [1e-9]
    low = math.floor(math.log10(min(bounds)))
    high = max(math.floor(math.log10(max(bounds))) + 1, low + 2)

    def y(value: float) -> float:
        if value == 0:
            return _BASE - _ZERO / 3
        return _LOW + (_DIFFERENCE - _ZERO) * (high - math.log10(value)) / (high - low)

    yield f'<text x="{LEFT - 8}" y="{_BASE}" text-anchor="end">0</text>'
    for power in range(low, high + 1, -(-(high - low) // _MAX_DECADES)):
        yield from _level(y(10.0**power), f"1e{power}")
    if tolerance > 0:
        at = y(tolerance)
        ends = f'x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{at:.1f}" y2="{at:.1f}"'
        yield f'<line class="tolerance" {ends}/>'
        yield (
            f'<text class="mark" x="{LEFT + WIDTH - 6}" y="{at - 5:.1f}" text-anchor="end">'
            f"tolerance {tolerance:g}</text>"
        )
    yield from _curve("d", one, [y(v) if math.isfinite(v) else None for v in one.relative])
    for step, value in zip(one.steps, one.relative, strict=True):
        if math.isinf(value):
            yield f'<circle class="odd" cx="{_x(one, step):.1f}" cy="{_LOW - 8}" r="3.5"/>'


def _level(y: float, text: str) -> Iterator[str]:
    yield f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
    yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _curve(name: str, one: Curves, heights: Sequence[float | None]) -> Iterator[str]:
    """Return the path of a curve; it is interrupted where a height is missing."""
    moves, path = "M", []
    for step, y in zip(one.steps, heights, strict=True):
        if y is None:
            moves = "M"
            continue
        path.append(f"{moves}{_x(one, step):.1f} {y:.1f}")
        moves = "L"
    yield f'<path class="curve {name}" d="{"".join(path)}"/>'
    if len(one.steps) > _DOTS:
        return
    for step, y in zip(one.steps, heights, strict=True):
        if y is not None:
            yield f'<circle class="{name}" cx="{_x(one, step):.1f}" cy="{y:.1f}" r="2"/>'


def _x(one: Curves, step: float) -> float:
    first, last = one.steps[0], one.steps[-1]
    return LEFT + WIDTH * ((step - first) / (last - first) if last > first else 0.5)
