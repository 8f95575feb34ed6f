"""The HTML page of ``ringproof logs watch``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ringproof.cli.logs_plots import LEFT, WIDTH, ticks
from ringproof.cli.logs_watch_plot import TITLES, finding_line, plottable, step_line
from ringproof.cli.page import asset, rendered
from ringproof.harness.logs.watching.history import Point
from ringproof.harness.logs.watching.watch import State
from ringproof.harness.reports.printable import showable

_TOP, _HEIGHT, _BOTTOM, _RIGHT = 8, 200, 40, 36


def page(state: State, names: Sequence[str], refresh: int | None) -> str:
    """Return the page's text.

    Args:
        names: Files that are watched.
        refresh: Seconds after which a browser loads the page again; ``None`` once the run is no
            longer watched.
    """
    largest = max(state.cp_counts.values(), default=1)
    return rendered(
        "watch.html",
        title=showable(f"Training log: {step_line(state).partition('  ')[0]}", 400),
        finite=state.not_finite is None,
        style=asset("parity.css") + asset("watch.css"),
        refresh=refresh,
        names=[showable(name, 400) for name in names],
        said=step_line(state),
        findings=[finding_line(one) for one in state.findings],
        panels=[
            _panel(title, state.curves[name])
            for name, title in TITLES.items()
            if plottable(state.curves.get(name, ()))
        ],
        counted=state.cp_counted,
        bars=[(size, count, 100 * count / largest) for size, count in state.cp_counts.items()],
    )


def _panel(title: str, points: Sequence[Point]) -> dict[str, Any]:
    """Return what the template draws of one curve, in the units of its SVG."""
    known = [point for point in points if math.isfinite(point.low)]
    low, high = min(point.low for point in known), max(point.high for point in known)
    margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin
    first, last = points[0].first, points[-1].last

    def x(step: float) -> float:
        return LEFT + WIDTH * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return _TOP + _HEIGHT * (high - value) / (high - low)

    path, move, dots = "", "M", []
    for point in points:
        if not math.isfinite(point.low):
            move = "M"
            continue
        place = x((point.first + point.last) / 2)
        path += f"{move}{place:.1f} {y(point.low):.1f}"
        if point.high > point.low:
            path += f"L{place:.1f} {y(point.high):.1f}"
        move = "L"
        dots.append((place, y(point.high)))
    return {
        "name": title,
        "size": (LEFT + WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM),
        "frame": (LEFT, _TOP, WIDTH, _HEIGHT),
        "path": path,
        "dots": dots if len(points) <= 60 else [],
        "steps": [(x(step), int(step)) for step in ticks(first, last, 10) if step == int(step)],
        "levels": [(y(level), f"{level:.6g}") for level in ticks(low, high)],
        "gaps": [x(point.first) for point in points if not math.isfinite(point.low)],
        "joined": any(point.count > 1 for point in points),
    }
