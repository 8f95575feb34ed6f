"""A plan as one page that needs nothing but the file itself: ranks by time, before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ringproof.cli.page import asset, embedded, rendered
from ringproof.cli.plan_result import Baseline, Result
from ringproof.cli.plan_text import amount, graph_lines
from ringproof.palette import size_colour
from ringproof.reference.planning.lengths import plain
from ringproof.reference.planning.simulate import BusyInterval, Timeline

_FAR = 4.0
"""A baseline this much slower than the plan is folded: it would squeeze the other pictures."""


def page(result: Result) -> str:
    """The page's text. Everything that came from outside is escaped by the template."""
    static = {size for item in result.baselines for size in item.plan.cp_sizes}
    sizes = sorted(static.union(result.plan.metrics.cp_histogram))
    colours = {size: size_colour(size) for size in sizes}
    parts = [
        Baseline("dynamic", "", result.plan, result.model, result.options.goal()),
        *result.baselines,
    ]
    drawings = [drawing(part.line, result.lengths.values, sizes) for part in parts]
    data = {
        "ranks": result.plan.ranks,
        "seconds": result.plan.metrics.unit == "seconds",
        "together": result.options.objective == "sync",
        "sizes": sizes,
        "colours": [colour.fill for colour in colours.values()],
        "inks": [colour.ink for colour in colours.values()],
        "panels": [
            {"end": item.end, "until": item.until, "ends": item.ends, "blocks": item.blocks}
            for item in drawings
        ],
    }
    target = "pr5618" if result.graphs else "dev"
    return rendered(
        "plan.html",
        title=f"Dynamic CP plan: {len(result.lengths):,} sequences on {result.plan.ranks:,} ranks",
        style=asset("plan.css"),
        script=asset("plan.js"),
        lead=plain(f"{result.lengths.source}; {result.setting}"),
        numbers=list(_numbers(result)),
        colours={size: colour.fill for size, colour in colours.items()},
        panels=[_panel(result, *pair) for pair in zip(parts, drawings, strict=True)],
        remarks="".join(f" {plain(remark)}" for remark in _remarks(result)),
        histogram=result.plan.metrics.cp_histogram,
        graphs=list(graph_lines(result.options, result.graphs)) if result.graphs else [],
        target="pull request 5618" if result.graphs else "dev",
        flags="\n".join(result.flags(target)),
        data=embedded(data),
    )


def _numbers(result: Result) -> Iterator[tuple[str, str, str]]:
    """Names, values and remarks of the large numbers."""
    metrics = result.plan.metrics
    total = f"{sum(result.lengths.values):,} tokens"
    # Long units would burst the large type.
    counted = metrics.unit != "seconds"
    how = f"{metrics.unit}, {result.options.objective}" if counted else result.options.objective
    yield "Iteration", _value(metrics.makespan, metrics.unit), how
    bound = f"certified {_value(metrics.lower_bound, metrics.unit)}"
    yield "Ratio to bound", f"{metrics.ratio:.4f}", bound
    for baseline, gain in result.gains():
        remark = f"CP {baseline.cp_size}, {len(baseline.plan.microbatches):,} microbatches"
        yield f"Against {baseline.name}", f"{gain:.2f} times", remark
    if result.reduction:
        gains = ", ".join(f"{gain:.2f}" for _, gain in result.gains(result.reduction))
        reduced = amount(result.reduction, metrics.unit)
        yield "Gradients", reduced, f"to reduce, if nothing hides it: then {gains} times"
    yield "Microbatches", f"{len(result.plan.microbatches):,}", total
    yield "Idle", f"{result.line.idle_fraction:.1%}", "of the ranks' time"
    yield "Padding", f"{metrics.padding_fraction:.2%}", "of the tokens in groups"
    yield "Planned in", f"{1e3 * metrics.planning_seconds:.1f} ms", "reading left out"


def _value(value: float, unit: str) -> str:
    return amount(value, unit) if unit == "seconds" else f"{value:.4g}"


def _panel(result: Result, part: Baseline, drawn: Drawing) -> dict[str, Any]:
    """What the page says of a plan, by its picture and in the table."""
    metrics, name = part.plan.metrics, part.name
    found: dict[str, Any] = {
        "name": name,
        "title": f"{name.capitalize()}: CP {part.cp_size}, {part.order}",
        "folded": name not in ("dynamic", "static"),
        "near": name == "padded" and part.line.ends[-1] <= _FAR * result.line.ends[-1],
        "iteration": amount(metrics.makespan, metrics.unit),
        "microbatches": f"{len(part.plan.microbatches):,}",
        "idle": f"{part.line.idle_fraction:.1%}",
        "padding": f"{metrics.padding_fraction:.1%}",
    }
    if name == "dynamic":
        found["title"] = "Dynamic CP"
    facts = [found["iteration"], f"{found['microbatches']} microbatches"]
    facts += [f"{found['idle']} idle", f"{found['padding']} padding"]
    if drawn.ranks_per_row > 1:
        rows = drawn.ranks_per_row
        facts.append(f"groups below {rows} ranks drawn together with their mean time")
    if drawn.cut:
        facts.append(f"only the first {len(drawn.ends):,} microbatches drawn")
    return {**found, "facts": ", ".join(facts)}


def _remarks(result: Result) -> Iterator[str]:
    if result.options.pp > 1:
        yield "One pipeline stage at work, without its waiting for the others; Iteration has it."
    if result.memory is not None:
        yield f"Memory: {result.memory.said(result.fullest)}."
    yield from (f"Warning: {warning}." for warning in result.warnings)


MAX_BLOCKS = 24_000
_MOST_ROWS = 512
_LISTED = 10
"""Sequences that a rectangle names; it counts the others."""


@dataclass(frozen=True)
class Drawing:
    """A timeline as the page draws it.

    Attributes:
        blocks: Per rectangle: microbatch, first rank, ranks, start, end, index of its size,
            sequences, tokens, the first sequences as (id, length), groups in it.
        ends: End of each drawn microbatch.
        end: End of the last microbatch, drawn or not.
        until: Time after which not everything is drawn; `end` where everything is.
        ranks_per_row: Groups of fewer ranks are drawn together.
        cut: Whether microbatches are left out.
    """

    blocks: tuple[tuple[Any, ...], ...]
    ends: tuple[float, ...]
    end: float
    until: float
    ranks_per_row: int
    cut: bool


def drawing(line: Timeline, lengths: Sequence[int], sizes: Sequence[int]) -> Drawing:
    """The rectangles of a timeline, at most `MAX_BLOCKS`, with places in ``sizes``."""
    per_row = 1
    while line.ranks > per_row * _MOST_ROWS:
        per_row *= 2
    blocks, last = list(_rows(line.blocks, per_row)), len(line.ends)
    while len(blocks) > MAX_BLOCKS and per_row < line.ranks:
        per_row *= 2
        blocks = list(_rows(line.blocks, per_row))
    if len(blocks) > MAX_BLOCKS:
        last = blocks[MAX_BLOCKS][0].microbatch
        blocks = [block for block in blocks[:MAX_BLOCKS] if block[0].microbatch < last]
    values, places = lengths, {size: place for place, size in enumerate(sizes)}
    return Drawing(
        tuple(_drawn(together, values, places) for together in blocks),
        tuple(_short(end) for end in line.ends[:last]),
        _short(line.ends[-1]),
        _short(min((b.start for b in line.blocks if b.microbatch >= last), default=line.ends[-1])),
        per_row,
        last < len(line.ends),
    )


def _rows(blocks: Sequence[BusyInterval], per_row: int) -> Iterator[tuple[BusyInterval, ...]]:
    """Groups that share a rectangle: neighbours in a row of ranks, if they are smaller than it."""
    by_microbatch = groupby(blocks, key=lambda block: block.microbatch)
    for _, found in by_microbatch:
        ordered = sorted(found, key=lambda block: block.group.first_rank)
        if per_row == 1:
            yield from ((block,) for block in ordered)
            continue
        yield from ((block,) for block in ordered if block.group.size >= per_row)
        small = (block for block in ordered if block.group.size < per_row)
        for _, near in groupby(small, key=lambda block: block.group.first_rank // per_row):
            yield tuple(near)


def _drawn(
    together: Sequence[BusyInterval], lengths: Sequence[int], places: dict[int, int]
) -> tuple[Any, ...]:
    groups = [block.group for block in together]
    members = [sequence for group in groups for sequence in group.sequences]
    first = min(group.first_rank for group in groups)
    after = max(group.first_rank + group.size for group in groups)
    by_size: Counter[int] = Counter()
    for group in groups:
        by_size[group.size] += group.size
    ranks = by_size.total()
    return (
        together[0].microbatch,
        first,
        after - first,
        _short(sum(block.start * block.group.size for block in together) / ranks),
        _short(sum(block.end * block.group.size for block in together) / ranks),
        places[by_size.most_common(1)[0][0]],
        len(members),
        sum(lengths[member] for member in members),
        tuple((member, lengths[member]) for member in members[:_LISTED]),
        len(together),
    )


def _short(value: float) -> float:
    """Enough digits for a picture."""
    return float(f"{value:.7g}")
