"""A plan as one page: ranks by time, before and after. It needs nothing but the file itself."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from string import Template
from typing import Any

from ringproof.cli.page import asset, embedded
from ringproof.cli.plan_flags import megatron_flags
from ringproof.cli.plan_graphs import graph_lines
from ringproof.cli.plan_result import Result, idle_fraction, wanted
from ringproof.cli.plan_text import amount
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.lengths import plain
from ringproof.reference.planning.plan import Plan
from ringproof.reference.planning.simulate import Block, Timeline

_ANCHORS = ((68, 119, 190), (34, 160, 150), (122, 180, 70), (240, 180, 40), (226, 105, 50))
_LAST = (150, 60, 140)
_DARK_INK, _LIGHT_INK = "#10151a", "#ffffff"
_Part = tuple[str, Plan, Timeline]
_FAR = 4.0
"""A baseline this much slower than the plan is folded: it would squeeze the other pictures."""


def page(result: Result) -> str:
    """The page's text. Everything that came from outside is escaped."""
    parts = _parts(result)
    drawings = [drawing(line, result.lengths.values, sizes(result)) for _, _, line in parts]
    title = f"Dynamic CP plan: {len(result.lengths):,} sequences on {result.plan.ranks:,} ranks"
    return Template(asset("plan.html")).substitute(
        title=html.escape(title),
        style=asset("plan.css"),
        script=asset("plan.js"),
        lead=html.escape(plain(f"{result.lengths.source}; {result.setting}")),
        numbers="\n".join(_numbers(result)),
        legend="\n".join(_legend(result)),
        panels="\n".join(_panels(result, parts, drawings)),
        remarks=html.escape("".join(f" {plain(remark)}" for remark in _remarks(result))),
        histogram="\n".join(_histogram(result)),
        heads="".join(f"<th>{name}</th>" for name, _, _ in parts),
        compared="\n".join(_compared(parts)),
        graphs="\n".join(_graphs(result)),
        target="pull request 5618" if result.graphs else "dev",
        flags=html.escape("\n".join(_flags(result))),
        data=embedded(_data(result, drawings)),
    )


def sizes(result: Result) -> tuple[int, ...]:
    """Group sizes of the plan and its baselines."""
    baselines = (size for item in result.baselines for size in item.plan.cp_sizes)
    return tuple(sorted({*result.plan.metrics.cp_histogram, *baselines}))


def _flags(result: Result) -> list[str]:
    made = wanted(result.options, result.domain, result.lengths, graphs=result.graphs)
    return megatron_flags(made, "pr5618" if result.graphs else "dev")


def _graphs(result: Result) -> Iterator[str]:
    """What graphs have to hold, if that was asked for."""
    if result.graphs is None:
        return
    yield '<section class="graphs">\n<h2>CUDA graphs</h2>\n<dl>'
    for name, value in graph_lines(result.options, result.graphs):
        yield f"<dt>{name.removeprefix('graph ')}</dt><dd>{html.escape(value)}</dd>"
    yield "</dl>\n</section>"


def _parts(result: Result) -> list[_Part]:
    others = [(item.name, item.plan, item.line) for item in result.baselines]
    return [("dynamic", result.plan, result.line), *others]


def _data(result: Result, drawings: Sequence[Drawing]) -> dict[str, Any]:
    used = sizes(result)
    colours = [_colour(place, len(used)) for place in range(len(used))]
    return {
        "ranks": result.plan.ranks,
        "seconds": result.plan.metrics.unit == "seconds",
        "together": result.options.objective == "sync",
        "sizes": used,
        "colours": [_hex(colour) for colour in colours],
        "inks": [_LIGHT_INK if _luminance(colour) < 130 else _DARK_INK for colour in colours],
        "panels": [
            {"end": item.end, "until": item.until, "ends": item.ends, "blocks": item.blocks}
            for item in drawings
        ],
    }


def _colour(place: int, count: int) -> tuple[int, int, int]:
    """Colour of the ``place``-th of ``count`` sizes, from blue over green to red."""
    anchors = (*_ANCHORS, _LAST)
    at = place * (len(anchors) - 1) / max(1, count - 1)
    low = min(int(at), len(anchors) - 2)
    mixed = [
        round(one + (other - one) * (at - low))
        for one, other in zip(anchors[low], anchors[low + 1], strict=True)
    ]
    return mixed[0], mixed[1], mixed[2]


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _luminance(colour: tuple[int, int, int]) -> float:
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def _numbers(result: Result) -> Iterator[str]:
    metrics = result.plan.metrics
    total = f"{int(result.lengths.values.sum()):,} tokens"
    # Long units would burst the large type.
    counted = metrics.unit != "seconds"
    how = f"{metrics.unit}, {result.options.objective}" if counted else result.options.objective
    yield _number("Iteration", _value(metrics.makespan, metrics.unit), how)
    bound = f"certified {_value(metrics.lower_bound, metrics.unit)}"
    yield _number("Ratio to bound", f"{metrics.ratio:.4f}", bound)
    for baseline, gain in result.gains():
        remark = f"CP {baseline.cp_size}, {len(baseline.plan.microbatches):,} microbatches"
        yield _number(f"Against {baseline.name}", f"{gain:.2f} times", remark)
    if result.reduction:
        gains = ", ".join(f"{gain:.2f}" for _, gain in result.reduced_gains())
        reduced = amount(result.reduction, metrics.unit)
        yield _number("Gradients", reduced, f"to reduce, if nothing hides it: then {gains} times")
    yield _number("Microbatches", f"{len(result.plan.microbatches):,}", total)
    yield _number("Idle", f"{idle_fraction(result.plan, result.line):.1%}", "of the ranks' time")
    yield _number("Padding", f"{metrics.padding_fraction:.2%}", "of the tokens in groups")
    yield _number("Planned in", f"{1e3 * metrics.planning_seconds:.1f} ms", "reading left out")


def _value(value: float, unit: str) -> str:
    return amount(value, unit) if unit == "seconds" else f"{value:.4g}"


def _number(name: str, value: str, remark: str) -> str:
    name, value, remark = map(html.escape, (name, value, remark))
    return f"<div><dt>{name}</dt><dd>{value}<small>{remark}</small></dd></div>"


def _legend(result: Result) -> Iterator[str]:
    used = sizes(result)
    for place, size in enumerate(used):
        colour = _hex(_colour(place, len(used)))
        yield f'<li><span class="swatch" style="background:{colour}"></span>CP {size}</li>'


def _panels(result: Result, parts: Sequence[_Part], drawings: Sequence[Drawing]) -> Iterator[str]:
    for (name, plan, line), drawn in zip(parts, drawings, strict=True):
        said = ", ".join(_facts(plan, line, drawn))
        heading = (
            f"<h2>{html.escape(_titled(name, result))} <small>{html.escape(said)}</small></h2>"
        )
        label = html.escape(f"{name}: ranks by time; {said}")
        canvas = f'<canvas tabindex="0" role="img" aria-label="{label}"></canvas>'
        if name not in ("dynamic", "static"):
            near = name == "padded" and line.ends[-1] <= _FAR * result.line.ends[-1]
            opened = " open" if near else ""
            yield f'<details class="panel"{opened}><summary>{heading}</summary>{canvas}</details>'
        else:
            yield f'<section class="panel">{heading}{canvas}</section>'


def _facts(plan: Plan, line: Timeline, drawn: Drawing) -> Iterator[str]:
    yield amount(plan.metrics.makespan, plan.metrics.unit)
    yield f"{len(plan.microbatches):,} microbatches"
    yield f"{idle_fraction(plan, line):.1%} idle"
    yield f"{plan.metrics.padding_fraction:.1%} padding"
    if drawn.ranks_per_row > 1:
        yield f"groups below {drawn.ranks_per_row} ranks drawn together with their mean time"
    if drawn.cut:
        yield f"only the first {len(drawn.ends):,} microbatches drawn"


def _titled(name: str, result: Result) -> str:
    for baseline in result.baselines:
        if baseline.name == name:
            return f"{name.capitalize()}: CP {baseline.cp_size}, {baseline.dealing}"
    return "Dynamic CP"


def _remarks(result: Result) -> Iterator[str]:
    if result.options.pp > 1:
        yield "One pipeline stage at work, without its waiting for the others; Iteration has it."
    yield from result.lengths.notes
    if result.warning:
        yield f"Warning: {result.warning}."


def _histogram(result: Result) -> Iterator[str]:
    counts = result.plan.metrics.cp_histogram
    used, most = sizes(result), max(counts.values())
    for size, count in counts.items():
        colour = _hex(_colour(used.index(size), len(used)))
        style = f"width:{100 * count / most:.1f}%;background:{colour}"
        meter = f'<div class="meter" style="{style}"></div>'
        yield f"<tr><th>{size}</th><td>{count:,}</td><td>{meter}</td></tr>"


def _compared(parts: Sequence[_Part]) -> Iterator[str]:
    for name in ("iteration", "microbatches", "idle", "padding"):
        cells = "".join(f"<td>{html.escape(_said(name, *part[1:]))}</td>" for part in parts)
        yield f"<tr><th>{name}</th>{cells}</tr>"


def _said(name: str, plan: Plan, line: Timeline) -> str:
    if name == "iteration":
        return amount(plan.metrics.makespan, plan.metrics.unit)
    if name == "microbatches":
        return f"{len(plan.microbatches):,}"
    fraction = plan.metrics.padding_fraction if name == "padding" else idle_fraction(plan, line)
    return f"{fraction:.1%}"


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
        ends: When each drawn microbatch has ended.
        end: When the last one has, drawn or not.
        until: What comes later is not all drawn; `end` where everything is.
        ranks_per_row: Groups of fewer ranks are drawn together.
        cut: Whether microbatches are left out.
    """

    blocks: tuple[tuple[Any, ...], ...]
    ends: tuple[float, ...]
    end: float
    until: float
    ranks_per_row: int
    cut: bool


def drawing(line: Timeline, lengths: IntArray, sizes: Sequence[int]) -> Drawing:
    """The rectangles of a timeline, at most `MAX_BLOCKS`.

    Args:
        line: The timeline.
        lengths: Tokens of each sequence.
        sizes: All group sizes of the page; rectangles name theirs by its place.
    """
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
    values, places = lengths.tolist(), {size: place for place, size in enumerate(sizes)}
    return Drawing(
        tuple(_drawn(together, values, places) for together in blocks),
        tuple(_short(end) for end in line.ends[:last]),
        _short(line.ends[-1]),
        _short(min((b.start for b in line.blocks if b.microbatch >= last), default=line.ends[-1])),
        per_row,
        last < len(line.ends),
    )


def _rows(blocks: Sequence[Block], per_row: int) -> Iterator[tuple[Block, ...]]:
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
    together: Sequence[Block], lengths: Sequence[int], places: dict[int, int]
) -> tuple[Any, ...]:
    members = [sequence for block in together for sequence in block.group.sequences]
    ranks = sum(block.group.size for block in together)
    first = min(block.group.first_rank for block in together)
    after = max(block.group.first_rank + block.group.size for block in together)
    by_size: dict[int, int] = {}
    for block in together:
        by_size[block.group.size] = by_size.get(block.group.size, 0) + block.group.size
    return (
        together[0].microbatch,
        first,
        after - first,
        _short(sum(block.start * block.group.size for block in together) / ranks),
        _short(sum(block.end * block.group.size for block in together) / ranks),
        places[max(by_size, key=lambda size: by_size[size])],
        len(members),
        sum(lengths[member] for member in members),
        tuple((member, lengths[member]) for member in members[:_LISTED]),
        len(together),
    )


def _short(value: float) -> float:
    """Enough digits for a picture."""
    return float(f"{value:.7g}")
