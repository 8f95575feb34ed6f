"""A rehearsal as one HTML page that needs no other file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from jinja2 import PackageLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from ringproof.rehearsal.verdict.agreement import Agreement, Difference
from ringproof.rehearsal.verdict.lines import between_lines, numbers, size, waiting_lines
from ringproof.rehearsal.verdict.path import MicrobatchGroups, PathTaken, named
from ringproof.rehearsal.verdict.variant import CODE, OTHER_ATTENTION, Rehearsal

MOST_MICROBATCHES = 120
CELL_WIDTH, CELL_HEIGHT = 26, 20
LABELS_WIDTH, HEADER_HEIGHT = 64, 34
STEP_GAP = 8
SHADES = 6
PLOT_WIDTH, PLOT_HEIGHT = 360, 150
PLOT_LEFT, PLOT_TOP, PLOT_BOTTOM = 74, 12, 24
LOWEST_RELATIVE = 1e-9  # equal numbers are drawn here


def page(rehearsal: Rehearsal) -> str:
    """Return the page's text. Everything that came from outside is escaped."""
    environment = SandboxedEnvironment(
        loader=PackageLoader("ringproof.rehearsal.verdict"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        numbers=numbers,
        size=size,
        relative=lambda value: "not finite" if math.isinf(value) else f"{value:.2g}",
        number=lambda value: f"{value:.9g}",
    )
    main, other, between = rehearsal.main, rehearsal.against, rehearsal.between
    return environment.get_template("rehearsal.html.j2").render(
        rehearsal=rehearsal,
        variants=[
            {
                "it": variant,
                "picture": picture(variant.path),
                "plots": tuple(plots(variant.agreement)),
                "waiting": tuple(waiting_lines(variant.refusal.waiting if variant.refusal else {})),
                "layers": tuple(_layers(variant.path)),
            }
            for variant in rehearsal.variants
        ],
        between=() if between is None else tuple(plots(between)),
        said_between=() if other is None else tuple(between_lines(main, other, between)),
        code=CODE,
        other_attention=OTHER_ATTENTION,
        cell=(CELL_WIDTH, CELL_HEIGHT),
        plot=(PLOT_WIDTH, PLOT_HEIGHT, PLOT_LEFT, PLOT_TOP),
    )


def picture(path: PathTaken) -> dict[str, Any] | None:
    """Return the picture of ranks by microbatch; ``None`` where nothing was computed."""
    if not path.microbatches:
        return None
    drawn = path.microbatches[:MOST_MICROBATCHES]
    ranks = sorted(path.tokens)
    rows = {rank: HEADER_HEIGHT + index * CELL_HEIGHT for index, rank in enumerate(ranks)}
    x, step = float(LABELS_WIDTH), drawn[0].iteration
    cells: list[dict[str, Any]] = []
    steps = [(f"step {step}", x)]
    for microbatch in drawn:
        if microbatch.iteration != step:
            step, x = microbatch.iteration, x + STEP_GAP
            steps.append((f"step {step}", x))
        cells += _cells(microbatch, x, rows)
        x += CELL_WIDTH
    sizes = sorted({cell["size"] for cell in cells if cell["size"]})
    return {
        "width": x + 2,
        "height": HEADER_HEIGHT + len(ranks) * CELL_HEIGHT + 2,
        "ranks": [(f"rank {rank}", rows[rank] + CELL_HEIGHT * 0.7) for rank in ranks],
        "steps": steps,
        "cells": cells,
        "sizes": [(number, _shade(number)) for number in sizes],
        "left_out": len(path.microbatches) - len(drawn),
    }


def _cells(
    microbatch: MicrobatchGroups, x: float, rows: dict[int, int]
) -> Iterator[dict[str, Any]]:
    """Yield a cell for neighbouring ranks of one group, and for each rank that takes no part."""
    where = f"step {microbatch.iteration}, microbatch {microbatch.number}"
    idle = set(rows)
    for share in microbatch.shares:
        tokens = sorted(set(share.tokens))
        spread = str(tokens[0]) if len(tokens) == 1 else f"{tokens[0]} to {tokens[-1]}"
        kind, width = named(share.comm_type, share.sizes), len(share.ranks)
        said = f"{where}: ranks {numbers(share.ranks)}, {kind}, {spread} tokens per rank"
        idle -= set(share.ranks)
        places = sorted(rows[rank] for rank in share.ranks if rank in rows)
        for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0] * CELL_HEIGHT):
            heights = [place for _, place in run]
            yield {
                "x": x, "y": heights[0], "height": len(heights) * CELL_HEIGHT, "size": width,
                "shade": _shade(width), "title": said,
            }  # fmt: skip
    for rank in idle:
        yield {
            "x": x, "y": rows[rank], "height": CELL_HEIGHT, "size": 0, "shade": 0,
            "title": f"{where}: rank {rank} takes no part",
        }  # fmt: skip


def _shade(size: int) -> int:
    return min(int(math.log2(max(size, 1))), SHADES - 1)


def plots(agreement: Agreement) -> Iterator[dict[str, Any]]:
    """Yield the plots of all compared numbers: values, then relative differences."""
    names = dict.fromkeys(item.name for item in agreement.differences if item.iteration)
    for name in names:
        points = [item for item in agreement.differences if item.name == name and item.iteration]
        every = max(1, len(points) // 6)
        steps = [(str(item.iteration), x) for item, x in list(_across(points))[::every]]
        largest = max(item.relative for item in points)
        values = {"name": name, "said": "", "tolerance": None}
        relatives = {"name": f"{name}, relative difference", "said": f"at most {largest:.2g}"}
        yield {"steps": steps, **values, **_values(points)}
        yield {"steps": steps, **relatives, **_relatives(points)}


def _values(points: Sequence[Difference]) -> dict[str, Any]:
    """Return the curves of both runs, and the axis that they need."""
    series = {
        kind: [(x, item.iteration, number) for item, x in _across(points)
               if (number := getattr(item, of)) is not None and math.isfinite(number)]
        for kind, of in (("reference", "reference"), ("run", "value"))
    }  # fmt: skip
    finite = [number for dots in series.values() for _, _, number in dots]
    ends = min(finite, default=0.0), max(finite, default=1.0)
    margin = (ends[1] - ends[0]) * 0.08 or abs(ends[1]) * 0.01 or 1.0

    def height(value: float) -> float:
        return _height((value - ends[0] + margin) / (ends[1] - ends[0] + 2 * margin))

    curves = {
        kind: [(x, height(number), f"step {step}: {number:.9g}") for x, step, number in dots]
        for kind, dots in series.items()
    }
    return {
        "curves": [(kind, _line(dots)) for kind, dots in curves.items()],
        "marks": [(kind, *dot) for kind, dots in curves.items() for dot in dots],
        "axis": [(f"{value:.4g}", height(value)) for value in ends],
    }


def _relatives(points: Sequence[Difference]) -> dict[str, Any]:
    """Return the curve of relative differences on a logarithmic axis, with the tolerance."""
    tolerance = points[0].tolerance
    largest = max([tolerance, *(item.relative for item in points if item.relative < math.inf)])
    low, high = math.log10(LOWEST_RELATIVE), math.log10(largest) + 0.5

    def height(value: float) -> float:
        exponent = math.log10(max(value, LOWEST_RELATIVE)) if value < math.inf else high
        return _height((exponent - low) / (high - low))

    dots = [
        (x, height(item.relative), f"step {item.iteration}: {item.relative:.3g}")
        for item, x in _across(points)
    ]
    kinds = ["difference" if item.within else "beyond" for item in points]
    exponents = range(math.ceil(low), math.floor(high) + 1, 2)
    return {
        "curves": [("difference", _line(dots))],
        "marks": [(kind, *dot) for kind, dot in zip(kinds, dots, strict=True)],
        "axis": [(f"1e{exponent}", height(10.0**exponent)) for exponent in exponents],
        "tolerance": height(tolerance),
    }


def _height(share: float) -> float:
    """Return the vertical coordinate of a share of the plot's height, from its lower end."""
    return PLOT_TOP + (PLOT_HEIGHT - PLOT_TOP - PLOT_BOTTOM) * (1 - share)


def _across(points: Sequence[Difference]) -> Iterator[tuple[Difference, float]]:
    first, last = points[0].iteration, points[-1].iteration
    width = PLOT_WIDTH - PLOT_LEFT - 16
    for item in points:
        share = (item.iteration - first) / (last - first) if last > first else 0.5
        yield item, PLOT_LEFT + 6 + share * width


def _line(dots: Sequence[tuple[float, float, str]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in dots)


def _layers(path: PathTaken) -> Iterator[tuple[str, str]]:
    """Return layers with the same attention calls in one line."""
    kinds: dict[str, list[int]] = {}
    for layer, counts in path.layers.items():
        text = ", ".join(f"{count} in {count.calls} calls" for count in counts)
        kinds.setdefault(text, []).append(layer)
    yield from ((numbers(layers), text) for text, layers in kinds.items())
