"""The picture of errors on a rehearsal's page: modules by ranks, and by positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ringproof.rehearsal.locate.overview import phase_of
from ringproof.rehearsal.locate.result import (
    MOST_TIMES,
    Culprit,
    ErrorMap,
    ModuleErrors,
    WrongPlace,
)
from ringproof.rehearsal.locate.saying import when

PHASES = ("forward", "backward", "gradients", "weights")
MOST_MODULES = 120
SHADES: Mapping[str, tuple[float, str]] = MappingProxyType({
    "e0": (1.0, "agrees"),
    "e1": (10.0, "up to 10 times what rounding explains"),
    "e2": (1e3, "up to 1,000 times"),
    "e3": (1e5, "up to 100,000 times"),
    "e4": (float("inf"), "more"),
})  # fmt: skip
"""Classes of the page's style, each with the largest ratio that it is for, and its legend."""


def errors_pictures(location: WrongPlace) -> dict[str, Any] | None:
    """Return the tables of errors, by rank and by position; ``None`` without a culprit."""
    errors, found = location.errors, location.culprit
    if errors is None or found is None:
        return None
    ranks = [str(rank) for rank in errors.ranks]
    where = [f"rank {rank}" for rank in ranks]
    borders = list(zip(errors.blocks, errors.blocks[1:], strict=False))
    starts = [str(start) for start, _ in borders]
    spans = [f"positions {start}-{end - 1}" for start, end in borders]
    wrong = [any(a <= last and first < b for first, last in found.positions) for a, b in borders]
    held = [rank in found.ranks for rank in errors.ranks]
    return {
        "when": when(errors.step),
        "legend": [(name, text) for name, (_, text) in SHADES.items()],
        "by_rank": _table(errors, found, (ranks, where, held), lambda row: row.ranks),
        "by_position": starts
        and _table(errors, found, (starts, spans, wrong), lambda row: row.blocks),
    }


def _table(
    errors: ErrorMap, found: Culprit,
    columns: tuple[Sequence[str], Sequence[str], Sequence[bool]],
    cells: Callable[[ModuleErrors], tuple[float | None, ...]],
) -> dict[str, Any]:  # fmt: skip
    """Return a table with a row for each module, and columns for each phase.

    Args:
        columns: Heads of the columns, what they are in words, and which have the culprit.
    """
    names, where, held = columns
    by_name = {(row.module, row.phase): cells(row) for row in errors.rows}
    phases = [phase for phase in PHASES if any(row for (_, of), row in by_name.items()
                                               if of == phase)]  # fmt: skip
    at = (found.module, phase_of(found))
    rows, drawn = [], _drawn(errors.modules, found.module)
    for module in drawn:
        row = [
            {**_cell(ratio, f"{module or 'the model'}: {phase}, {place}"),
             "start": not number, "first": (module, phase) == at and held[number]}
            for phase in phases
            for number, (ratio, place) in enumerate(
                zip(by_name.get((module, phase)) or [None] * len(names), where, strict=True)
            )
        ]  # fmt: skip
        outer, _, last = module.rpartition(".")
        layer = f"{outer.rpartition('.')[2]}.{last}" if last.isdigit() else last
        depth = sum(module.startswith(f"{one}." if one else "") for one in drawn if one != module)
        rows.append({"module": module or "the model", "name": layer or "the model",
                     "depth": depth, "first": module == found.module, "cells": row})  # fmt: skip
    return {
        "columns_are": "rank" if where and where[0].startswith("rank") else "position",
        "columns": names,
        "phases": phases,
        "rows": rows,
        "left_out": len(errors.modules) - len(rows),
    }


def _drawn(modules: Sequence[str], culprit: str) -> list[str]:
    """Leave out the innermost modules of a large model, but not the culprit."""
    for depth in range(max(name.count(".") for name in modules), -1, -1):
        drawn = [name for name in modules if name.count(".") <= depth or name == culprit]
        if len(drawn) <= MOST_MODULES:
            return drawn
    return drawn[:MOST_MODULES]


def _cell(ratio: float | None, place: str) -> dict[str, Any]:
    if ratio is None:
        return {"shade": "none", "text": "", "said": "-", "title": f"{place}: not compared"}
    shade = next(name for name, (most, _) in SHADES.items() if ratio <= most)
    if ratio <= 1:
        said = f"{ratio:.2g} of what rounding explains"
        return {"shade": shade, "text": "", "said": "agrees", "title": f"{place}: agrees, {said}"}
    mantissa, _, exponent = f"{ratio:.0e}".partition("e")
    text = f"{ratio:.0f}" if ratio < 100 else f"{mantissa}e{int(exponent)}"
    more = "at least " if ratio >= MOST_TIMES else ""
    return {"shade": shade, "text": text, "said": "",
            "title": f"{place}: {more}{ratio:.2g} times what rounding explains"}  # fmt: skip
