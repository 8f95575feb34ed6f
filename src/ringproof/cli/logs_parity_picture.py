"""Two training logs compared, as a PNG: both curves, and their relative difference below."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from ringproof.cli.logs_parity_text import headline
from ringproof.errors import InputError
from ringproof.files import write_atomically
from ringproof.harness.logs.training.comparison import Comparison
from ringproof.harness.logs.training.drawing import Curves, curves

_A, _B, _DIFFERENCE, _MARK = "#3b6fd4", "#e07a1f", "#7a4fb5", "#c03030"


def write_picture(result: Comparison, destination: str) -> None:
    """Draw all compared series, one beside the other.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # no backend, no window, no state
    except ImportError as error:
        remedy = "pip install 'ringproof[plots]', or use --html"
        raise InputError("--png", None, "needs the package matplotlib", remedy) from error
    drawn = curves(result)
    figure = Figure(figsize=(6.4 * len(drawn), 6.0), layout="constrained")
    figure.suptitle(headline(result), fontsize=12)
    axes = figure.subplots(2, len(drawn), squeeze=False, height_ratios=(3, 2), sharex="col")
    for place, one in enumerate(drawn):
        _draw_values(axes[0][place], one)
        _draw_difference(axes[1][place], one, result.tolerance)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130)
    write_atomically(Path(destination), stream.getvalue(), field="--png")


def _draw_values(axis: Any, one: Curves) -> None:
    axis.plot(one.steps, _finite(one.a), color=_A, linewidth=2.6, alpha=0.75, label="A")
    axis.plot(one.steps, _finite(one.b), color=_B, linewidth=1.2, linestyle=(0, (4, 2)), label="B")
    axis.set_ylabel(one.name)
    axis.grid(alpha=0.25)
    _mark_first(axis, one)
    axis.legend(loc="best", frameon=False)


def _draw_difference(axis: Any, one: Curves, tolerance: float) -> None:
    points = [
        (step, value)
        for step, value in zip(one.steps, one.relative, strict=True)
        if math.isfinite(value) and value > 0
    ]
    lone = [step for step, value in zip(one.steps, one.relative, strict=True) if math.isinf(value)]
    if points:
        axis.set_yscale("log")
        axis.plot(*zip(*points, strict=True), color=_DIFFERENCE, marker=".", markersize=3, lw=0.8)
    else:
        said = "" if lone else "no difference"
        axis.text(0.5, 0.5, said, ha="center", va="center", transform=axis.transAxes)
        axis.set_yticks([])
    _mark_lone(axis, lone)
    if tolerance > 0 and points:
        axis.axhline(tolerance, color=_MARK, linestyle="--", linewidth=1)
        axis.annotate(
            f"tolerance {tolerance:g}",
            (0.99, tolerance),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color=_MARK,
        )
    _mark_first(axis, one)
    axis.set_ylabel("relative difference")
    axis.set_xlabel("step")
    axis.grid(alpha=0.25)


def _mark_lone(axis: Any, steps: list[int]) -> None:
    """An infinite difference has no place on the axis: it is marked above."""
    if steps:
        place = axis.get_xaxis_transform()
        axis.plot(
            steps, [1.03] * len(steps), "x", color=_MARK, ms=4, transform=place, clip_on=False
        )


def _mark_first(axis: Any, one: Curves) -> None:
    if one.first is not None:
        axis.axvline(one.first, color=_MARK, linewidth=1, alpha=0.7)


def _finite(values: tuple[float, ...]) -> list[float]:
    """Infinite values are gaps, as NaN is."""
    return [value if math.isfinite(value) else math.nan for value in values]
