"""Plots of committed benchmark results, drawn when the site is built."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_INK, _LINE = "#010203", "#040506"
"""Stand for the page's own colours, which differ in light and dark."""
_COLOURS = ("#3b82c4", "#e08a1e", "#4c9f50", "#b75bb0")
_STYLE = """<style>
svg { --ink: #1f2328; --line: #c3c8ce; }
@media (prefers-color-scheme: dark) { svg { --ink: #e6e8eb; --line: #555b66; } }
</style>"""
_SETTINGS = MappingProxyType(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "ringproof",
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": _LINE,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": _LINE,
        "grid.linewidth": 0.6,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "legend.frameon": False,
    }
)


@contextmanager
def _figure(width: float, height: float, columns: int = 1) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with axes side by side, in the site's style."""
    with mpl.rc_context(dict(_SETTINGS)):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        yield figure, list(figure.subplots(1, columns, squeeze=False)[0])


def _svg(figure: Figure) -> bytes:
    """The figure as SVG in the colours of the page."""
    made = io.StringIO()
    figure.savefig(made, format="svg", metadata={"Date": None, "Creator": None})
    text = made.getvalue().replace(_INK, "var(--ink)").replace(_LINE, "var(--line)")
    return text.replace("<defs>", f"{_STYLE}\n<defs>", 1).encode()


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def planner_scale(benchmarks: Path) -> bytes:
    """Planning time by the number of sequences, for both cost measures."""
    rows = _json(benchmarks / "planner" / "results" / "scale.json")["rows"]
    rows = [row for row in rows if row["ranks"] != 64]  # a million twice would fold the line
    with _figure(7, 3, 2) as (figure, (times, ratios)):
        for index, (cost, name) in enumerate(
            (("AttentionOnly", "squared length only"), ("StepCost", "full cost"))
        ):
            chosen = [row for row in rows if row["cost"] == cost]
            counts = [row["sequences"] for row in chosen]
            style = {"color": _COLOURS[index], "marker": "o", "label": name}
            times.loglog(counts, [row["seconds"] for row in chosen], **style)
            ratios.semilogx(counts, [row["ratio_to_bound"] for row in chosen], **style)
        times.set(title="Planning time", xlabel="sequences", ylabel="processor seconds")
        ratios.set(title="Plan over certified bound", xlabel="sequences", ylim=(1, 1.04))
        times.legend()
        return _svg(figure)


def graphs_cuda(benchmarks: Path) -> bytes:
    """A layer on a GPU by the number of rows: as it is, at capacity, and replayed."""
    layers = _json(benchmarks / "graphs" / "results" / "cuda.json")["layers"]
    widths = sorted({layer["hidden"] for layer in layers})
    names = {"plain": "FlashAttention", "eager": "masks", "replay": "masks, replayed"}
    with _figure(9, 3, len(widths)) as (figure, panels):
        for axes, width in zip(panels, widths, strict=True):
            chosen = [layer for layer in layers if layer["hidden"] == width]
            rows = [layer["rows"] for layer in chosen]
            for colour, (way, name) in zip(_COLOURS, names.items(), strict=False):
                times = [layer["milliseconds"][way]["device"][1] for layer in chosen]
                axes.loglog(rows, times, color=colour, marker="o", label=name)
            axes.set_xticks(rows, [f"{count:,}" for count in rows], fontsize="small")
            axes.xaxis.minorticks_off()
            axes.set(title=f"width {width:,}", xlabel="rows", ylim=(0.8, 500))
        panels[0].set(ylabel="milliseconds")
        panels[0].legend()
        return _svg(figure)


def published(benchmarks: Path) -> bytes:
    """The gain of Dynamic CP that upstream published, and what the cost model predicts."""
    found = _json(benchmarks / "planner" / "results" / "published.json")
    rows = found["preset"][0]["upstream"]["rows"]
    other = found["preset"][1]["upstream"]["rows"]
    with _figure(7, 3) as (figure, (axes,)):
        places = range(len(rows))
        bars = (
            ("measured by upstream", [row["measured_speedup"] for row in rows]),
            ("predicted, h100", [row["predicted_speedup"] for row in rows]),
            ("predicted, gb200", [row["predicted_speedup"] for row in other]),
        )
        for index, (name, values) in enumerate(bars):
            at = [place + (index - 1) * 0.27 for place in places]
            axes.bar(at, values, width=0.25, color=_COLOURS[index], label=name)
        axes.set_xticks(list(places), [f"{row['gpus']} GPUs" for row in rows])
        axes.grid(axis="x", visible=False)
        axes.axhline(1, color=_INK, linewidth=1)
        axes.set(ylim=(0, 1.8), ylabel="Dynamic CP over static packing")
        axes.legend(ncols=3, loc="upper left")
        return _svg(figure)


def ring(benchmarks: Path) -> bytes:
    """Time of ring attention beside one SDPA call, and its memory by CP size."""
    found = _json(benchmarks / "results" / "ring_attention.cpu-gloo.json")
    speed = found["speed"]
    with _figure(7, 2.8, 2) as (figure, (times, memory)):
        names = ("ring, 2 processes", "SDPA, 2 threads")
        values = [median(speed["ring_seconds"]), median(speed["sdpa_seconds"])]
        times.barh(names, values, color=_COLOURS[:2], height=0.5)
        times.grid(axis="y", visible=False)
        times.set(title="Forward and backward", xlabel="seconds, median of five")
        sizes = [str(row["world"]) for row in found["memory"]]
        peaks = [row["peak_bytes"] / 2**20 for row in found["memory"]]
        memory.bar(sizes, peaks, color=_COLOURS[0], width=0.5)
        memory.grid(axis="x", visible=False)
        memory.set(title="Peak memory per rank", xlabel="CP size", ylabel="MiB above inputs")
        return _svg(figure)


def convergence(benchmarks: Path) -> bytes:
    """Losses of the same training under three schedules, and how far they are apart."""
    folder = benchmarks / "training" / "results"
    losses = {
        name: _losses(folder / f"convergence-{name}.csv")
        for name in ("padded", "packed", "dynamic")
    }
    with _figure(7, 3, 2) as (figure, (curves, apart)):
        dashes = ("-", "--", ":")
        for index, (name, values) in enumerate(losses.items()):
            style = {"color": _COLOURS[index], "linestyle": dashes[index], "label": name}
            curves.plot(values, **style)
            if name != "padded":
                pairs = zip(values, losses["padded"], strict=True)
                apart.semilogy([abs(a / b - 1) or 1e-17 for a, b in pairs], **style)
        curves.set(title="Loss", xlabel="step")
        apart.set(title="Relative difference from padded", xlabel="step")
        apart.axhline(1e-9, color=_INK, linewidth=1)
        apart.text(5, 1.5e-9, "limit")
        curves.legend()
        return _svg(figure)


def _losses(path: Path) -> list[float]:
    with path.open(encoding="utf-8", newline="") as stream:
        return [float(row["loss"]) for row in csv.DictReader(stream)]


def faults(benchmarks: Path) -> bytes:
    """How many of the planted faults under which a training runs to its end each check detects."""
    rows = _json(benchmarks / "training" / "results" / "faults.json")["faults"]
    trained = [row for row in rows if row["falls"] is not None]
    checks: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("the loss falls", lambda row: not row["falls"]),
        ("the loss is within 1e-3 of one rank's", lambda row: not row["close"]),
        ("the loss is within 1e-9", lambda row: bool(row["loss"])),
        ("loss and gradient norm within 1e-9", lambda r: bool(r["loss"] or r["grad_norm"])),
        ("all proofs", lambda row: row["detected"]),
    )
    with _figure(7, 2.6) as (figure, (axes,)):
        for name, sees in reversed(checks):
            seen = sum(map(sees, trained))
            axes.barh(name, len(trained), color=_LINE, height=0.6)
            axes.barh(name, seen, color=_COLOURS[2], height=0.6)
            axes.text(len(trained) + 0.3, name, f"{seen} of {len(trained)}", va="center")
        axes.grid(axis="y", visible=False)
        words = "faults under which a training runs to its end,\nand those that are detected"
        axes.set(xlabel=words, xlim=(0, 1.15 * len(trained)))
        return _svg(figure)


def drawn(root: Path) -> dict[str, bytes]:
    """The plots of a checkout, by file name."""
    return {name: draw(root / "benchmarks") for name, draw in PLOTS.items()}


PLOTS: Mapping[str, Callable[[Path], bytes]] = MappingProxyType(
    {
        "planner-scale.svg": planner_scale,
        "graphs-cuda.svg": graphs_cuda,
        "planner-published.svg": published,
        "ring-attention.svg": ring,
        "convergence.svg": convergence,
        "faults.svg": faults,
    }
)
