"""What a rehearsal's page draws: ranks by microbatch, and losses beside their reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from ringproof.palette import size_colour
from ringproof.rehearsal.verdict.agreement import Agreement
from ringproof.rehearsal.verdict.path import MicrobatchGroups, PathTaken, named

MOST_MICROBATCHES = 120
PLOT: Mapping[str, int] = MappingProxyType({"width": 360, "height": 150, "left": 74, "right": 356})
"""Size of a plot in pixels, and where its axis begins and ends."""
TOP, BOTTOM = 12, 24
LOWEST_RELATIVE = 1e-9  # equal numbers are drawn here

Points = Sequence[tuple[int, float, str]]
"""Training step, height in the unit of the axis, and the text that a reader sees on pointing."""


def picture(path: PathTaken) -> dict[str, Any] | None:
    """Return the table of ranks by microbatch; ``None`` where nothing was computed.

    A cell has the CP size of the rank's group and a text; the cell of a rank that takes no part has
    the size 0.
    """
    drawn = path.microbatches[:MOST_MICROBATCHES]
    if not drawn:
        return None
    columns = [_column(microbatch, sorted(path.tokens)) for microbatch in drawn]
    steps = groupby(microbatch.iteration for microbatch in drawn)
    sizes = sorted({cell["size"] for column in columns for cell in column if cell["size"]})
    return {
        "steps": [(step, len(list(members))) for step, members in steps],
        "rows": list(zip(sorted(path.tokens), zip(*columns, strict=True), strict=True)),
        "sizes": {number: size_colour(number) for number in sizes},
        "left_out": len(path.microbatches) - len(drawn),
    }


def _column(microbatch: MicrobatchGroups, ranks: Sequence[int]) -> list[dict[str, Any]]:
    where = f"step {microbatch.iteration}, microbatch {microbatch.number}"
    cells: dict[int, dict[str, Any]] = {}
    for share in microbatch.shares:
        tokens = sorted(set(share.tokens))
        spread = str(tokens[0]) if len(tokens) == 1 else f"{tokens[0]} to {tokens[-1]}"
        kind, width = named(share.comm_type, share.sizes), len(share.ranks)
        members = ", ".join(map(str, share.ranks))
        title = f"{where}: ranks {members}, {kind}, {spread} tokens per rank"
        cell = {"size": width, "title": title}
        cells |= dict.fromkeys(share.ranks, cell)
    return [
        cells.get(rank, {"size": 0, "title": f"{where}: rank {rank} takes no part"})
        for rank in ranks
    ]


def plots(agreement: Agreement) -> Iterator[dict[str, Any]]:
    """Yield two plots of each compared quantity: its values, and their relative differences."""
    names = dict.fromkeys(item.name for item in agreement.differences if item.iteration)
    for name in names:
        items = [item for item in agreement.differences if item.name == name and item.iteration]
        curves = {
            kind: [(item.iteration, number, f"step {item.iteration}: {number:.9g}")
                   for item in items
                   if (number := getattr(item, kind)) is not None and math.isfinite(number)]
            for kind in ("reference", "value")
        }  # fmt: skip
        levels = [level for dots in curves.values() for _, level, _ in dots] or [0.0, 1.0]
        low, high = min(levels), max(levels)
        margin = (high - low) * 0.08 or abs(high) * 0.01 or 1.0
        axis = [(f"{low:.4g}", low), (f"{high:.4g}", high)]
        yield _plot(name, curves, (low - margin, high + margin), axis)

        # Relative differences have a logarithmic axis: their heights are powers of ten.
        tolerance = items[0].tolerance
        finite = [item.relative for item in items if item.relative < math.inf]
        low, high = math.log10(LOWEST_RELATIVE), math.log10(max([tolerance, *finite])) + 0.5
        dots = [(item.iteration, min(math.log10(max(item.relative, LOWEST_RELATIVE)), high),
                 f"step {item.iteration}: {item.relative:.3g}") for item in items]  # fmt: skip
        exponents = range(math.ceil(low), math.floor(high) + 1, 2)
        axis = [(f"1e{exponent}", exponent) for exponent in exponents]
        drawn = _plot(f"{name}, relative difference", {"difference": dots}, (low, high), axis)
        # A mark stands above the one of its difference.
        drawn["marks"] += [
            ("beyond", *mark) for item, (_, *mark) in zip(items, drawn["marks"], strict=True)
            if not item.within
        ]  # fmt: skip
        drawn["said"] = f"at most {max(item.relative for item in items):.2g}"
        drawn["tolerance"] = _height(math.log10(tolerance), (low, high))
        yield drawn


def _plot(
    name: str,
    curves: Mapping[str, Points],
    ends: tuple[float, float],
    axis: Sequence[tuple[str, float]],
) -> dict[str, Any]:
    """Return curves with marks, the labels of steps, and an axis."""
    steps = sorted({step for dots in curves.values() for step, _, _ in dots})
    left, right = PLOT["left"] + 6, PLOT["right"] - 6
    span = steps[-1] - steps[0] if steps else 0
    places = {
        step: left + (right - left) * ((step - steps[0]) / span if span else 0.5) for step in steps
    }
    marks = [
        (kind, places[step], _height(level, ends), text)
        for kind, dots in curves.items() for step, level, text in dots
    ]  # fmt: skip
    return {
        "name": name,
        "said": "",
        "tolerance": None,
        "steps": list(places.items())[:: max(1, len(steps) // 6)],
        "curves": [
            (kind, " ".join(f"{x:.1f},{y:.1f}" for of, x, y, _ in marks if of == kind))
            for kind in curves
        ],
        "marks": marks,
        "axis": [(label, _height(level, ends)) for label, level in axis],
    }


def _height(level: float, ends: tuple[float, float]) -> float:
    """Return the vertical coordinate of a height in the unit of the axis."""
    share = (level - ends[0]) / (ends[1] - ends[0])
    return TOP + (PLOT["height"] - TOP - BOTTOM) * (1 - share)
