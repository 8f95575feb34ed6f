"""The state of a watched run as text: one line, or plots for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ringproof.logs.finding import RunFinding
from ringproof.logs.training.series import GRAD_NORM, LOSS
from ringproof.logs.watching.watch import SECONDS, TFLOPS, TOKENS, Point, Watch

TITLES: Mapping[str, str] = MappingProxyType(
    {
        LOSS: "loss",
        GRAD_NORM: "grad norm",
        SECONDS: "iteration time (s)",
        TOKENS: "tokens/s",
        TFLOPS: "TFLOP/s/GPU",
    }
)
"""Quantities in the order in which they are shown."""
_DRAWN = (LOSS, GRAD_NORM, SECONDS)
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of the dots of a braille character, by column and row from above."""
_LABEL = 11
_SHOWN_FINDINGS, _FEWEST_ROWS = 5, 3


def step_line(watch: Watch) -> str:
    """Return the last step in one line."""
    if watch.step is None:
        return "no step yet"
    values = [f"{title} {watch.latest[n]:.6g}" for n, title in TITLES.items() if n in watch.latest]
    return "  ".join([f"step {watch.step:,}", *values])


def histogram_text(watch: Watch) -> str:
    """Return the CP sizes in one line; empty where there are none."""
    sizes = " ".join(f"{size}:{count}" for size, count in watch.cp_counts.items())
    return f"{watch.cp_counted} {sizes}" if sizes else ""


def finding_line(finding: RunFinding) -> str:
    """Return a finding in one line."""
    return f"finding: {finding.code} at step {finding.step:,}: {finding.text}"


def screen(watch: Watch, names: Sequence[str], width: int, height: int) -> Any:
    """Return what a terminal of this size shows, for rich."""
    from rich.console import Group
    from rich.text import Text

    parts = [Text(", ".join(names), style="dim"), Text(step_line(watch), style="bold")]
    curves = {name: curve.points for name, curve in watch.curves.items()}
    drawn = [name for name in _DRAWN if plottable(curves.get(name, ()))]
    bars = list(_bars(watch.cp_counts, width))
    findings = list(watch.findings)[-_SHOWN_FINDINGS:]
    rows = 0
    while drawn:
        room = height - 4 - 2 * len(drawn) - len(bars) - len(findings)
        rows = room // (len(drawn) + 1)
        if rows >= _FEWEST_ROWS:
            break
        drawn.pop()
    for place, name in enumerate(drawn):
        parts.append(Text(TITLES[name], style="cyan"))
        tall = 2 * rows if place == 0 else rows
        parts += map(Text, plot(curves[name], width - _LABEL - 1, tall))
    if bars:
        parts += [Text(watch.cp_counted, style="cyan"), *map(Text, bars)]
    parts += [Text(finding_line(one), style="red") for one in findings]
    for part in parts:
        part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)


def plottable(points: Sequence[Point]) -> bool:
    """Return whether a curve has a finite value."""
    return any(math.isfinite(point.low) for point in points)


def plot(points: Sequence[Point], width: int, height: int) -> list[str]:
    """Return a curve in braille characters, with its largest and smallest value and its steps.

    Args:
        points: At least one with a finite value; a step without one is a gap.
        width: Characters of the curve alone; labels stand to the left.
        height: Its lines; a line for the steps follows.
    """
    known = [point for point in points if math.isfinite(point.low)]
    low, high = min(point.low for point in known), max(point.high for point in known)
    rows = [[0] * width for _ in range(height)]
    for column, (bottom, top) in _columns(points, 2 * width).items():
        reach = [_height(value, low, high, 4 * height) for value in (top, bottom)]
        for dot in range(reach[0], reach[1] + 1):
            rows[dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
    labels = [f"{high:.5g}", *[""] * (height - 2), f"{low:.5g}"]
    lines = [
        f"{label:>{_LABEL - 1}} {''.join(chr(0x2800 + bits) for bits in row)}"
        for label, row in zip(labels, rows, strict=True)
    ]
    first, last = f"{points[0].first:,}", f"{points[-1].last:,}"
    return [*lines, f"{'':{_LABEL}}{first}{last:>{max(1, width - len(first))}}"]


def _height(value: float, low: float, high: float, dots: int) -> int:
    """Return the row of a value, from 0 at the top."""
    part = (high - value) / (high - low) if high > low else 0.5
    return min(dots - 1, int(part * dots))


def _columns(points: Sequence[Point], count: int) -> dict[int, tuple[float, float]]:
    """Return for each column the least and the greatest value of the curve in it."""
    first, last = points[0].first, points[-1].last
    found: dict[int, tuple[float, float]] = {}
    before: tuple[int, float] | None = None
    for point in points:
        if not math.isfinite(point.low):
            before = None
            continue
        part = ((point.first + point.last) / 2 - first) / (last - first) if last > first else 0.5
        column, middle = min(count - 1, int(part * count)), (point.low + point.high) / 2
        reached = [*_between(before, (column, middle)), (column, point.low), (column, point.high)]
        for place, value in reached:
            low, high = found.get(place, (value, value))
            found[place] = (min(low, value), max(high, value))
        before = (column, middle)
    return found


def _between(one: tuple[int, float] | None, two: tuple[int, float]) -> Iterator[tuple[int, float]]:
    """Yield both ends of the line from one place to another in each column that it crosses."""
    if one is None:
        return
    columns = two[0] - one[0]
    for place in range(columns):
        for end in (place, place + 1):
            yield one[0] + place, one[1] + (two[1] - one[1]) * end / columns


def _bars(counts: Mapping[int, int], width: int) -> Iterator[str]:
    largest = max(counts.values(), default=0)
    for size, count in counts.items():
        filled = round((width - 2 * _LABEL - 8) * count / largest) if largest else 0
        yield f"{f'CP {size}':>{_LABEL - 1}} {'█' * max(filled, count > 0)} {count:,}"
