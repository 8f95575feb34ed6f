"""A plan for a reader at a terminal: the numbers, and a small picture of its beginning."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rich.text import Text

from ringproof.cli.console import HarmlessConsole
from ringproof.cli.plan_options import PlanOptions
from ringproof.cli.plan_result import Result, inputs_of
from ringproof.reference.graphs.sizing import GraphCapacity
from ringproof.reference.planning.plan import Group, Microbatch
from ringproof.reference.planning.simulate import Timeline
from ringproof.styles import ASIDE, shown_on

_COLOURS = ("bright_blue", "cyan", "green", "yellow", "magenta", "red")
_PICTURED = 6
_PICTURE_WIDTH = 64
_UNITS = ("KiB", "MiB", "GiB", "TiB")
_LISTED = 8
"""CP sizes in a line."""


def amount(value: float, unit: str) -> str:
    """A time or a number of units, short: ``12.3 ms``, ``1.73e+08 squared tokens per rank``."""
    if unit != "seconds":
        return f"{value:.4g} {unit}"
    factor, name = 1.0, "s"
    if value < 1:
        factor, name = (1e-3, "ms") if value >= 1e-3 else (1e-6, "µs")
    return f"{value / factor:.4g} {name}"


def print_result(result: Result) -> None:
    """Print a plan's numbers and the picture of its first microbatches."""
    console = HarmlessConsole()
    graphs = graph_lines(result.options, result.graphs) if result.graphs else ()
    for name, value in itertools.chain(summary(result), graphs):
        line = Text.assemble((f"{name:<16}", ASIDE), value)
        console.print(shown_on(console, line), soft_wrap=True, highlight=False)
    console.print()
    for line in picture(result):
        console.print(line, soft_wrap=True, highlight=False)


def summary(result: Result) -> Iterator[tuple[str, str]]:
    """Names and values, in the order of a reader's questions."""
    plan, metrics, values = result.plan, result.plan.metrics, result.lengths.values
    yield "batch", f"{len(values):,} sequences, {sum(values):,} tokens, {_spread(result)}"
    sizes = ", ".join(map(str, plan.cp_sizes[:12])) + (", …" if len(plan.cp_sizes) > 12 else "")
    yield "domain", f"{plan.ranks:,} ranks, {plan.max_tokens_per_rank:,} tokens each, CP {sizes}"
    yield "cost", result.setting
    pipeline = result.options.goal().pipeline
    stages = f" through {pipeline.stages} stages" if pipeline.stages > 1 else ""
    virtual = f" of {pipeline.virtual} parts each" if pipeline.virtual > 1 else ""
    yield "microbatches", f"{len(plan.microbatches):,}{stages}{virtual}"
    yield "makespan", f"{amount(metrics.makespan, metrics.unit)} ({result.options.objective})"
    bound = amount(metrics.lower_bound, metrics.unit)
    yield "lower bound", f"{bound}; the plan is within {metrics.ratio:.4f} of it"
    for baseline, gain in result.gains():
        other = baseline.plan.metrics
        yield (
            f"against {baseline.name}",
            f"{gain:.2f} times as fast (CP {baseline.cp_size}, {baseline.order}: "
            f"{amount(other.makespan, other.unit)}, {len(baseline.plan.microbatches):,} "
            f"microbatches, {other.padding_fraction:.1%} padding)",
        )
    if result.reduction:
        gains = ", ".join(
            f"{gain:.2f} against {one.name}" for one, gain in result.gains(result.reduction)
        )
        reduced = amount(result.reduction, metrics.unit)
        yield "gradients", f"{reduced} to reduce them where nothing hides it: then {gains}"
    yield "idle", f"{result.line.idle_fraction:.1%} of the ranks' time, overheads included"
    yield "padding", f"{metrics.padding_fraction:.2%} of the tokens in groups"
    yield "CP sizes", _histogram(result)
    if result.memory is not None:
        yield "memory", result.memory.said(result.fullest)
    yield "planned in", f"{1e3 * metrics.planning_seconds:.1f} ms"
    for warning in result.warnings:
        yield "warning", warning


def _spread(result: Result) -> str:
    values = sorted(result.lengths.values)
    middle = values[len(values) // 2]
    return f"{values[0]:,} to {values[-1]:,}, median {middle:,}"


def _histogram(result: Result) -> str:
    counts = result.plan.metrics.cp_histogram
    total = sum(counts.values())
    return ", ".join(
        f"{size}: {count:,} sequences ({count / total:.0%})" for size, count in counts.items()
    )


def graph_lines(options: PlanOptions, capacity: GraphCapacity) -> Iterator[tuple[str, str]]:
    """Names and values, for the text and the page."""
    of, most = f" of {capacity.batches:,} batches" * (capacity.batches > 1), capacity.entries - 1
    yield (
        "graph capacity",
        f"--thd-max-packed-sequences {most + 1:,}: {most:,} sequences and a dummy; "
        f"the fullest pack{of} has {capacity.fullest:,}",
    )
    tokens = _listed([f"{size}: {size * capacity.rows:,}" for size in capacity.sizes])
    yield "graph rows", f"{capacity.rows:,} on each rank; tokens of CP {tokens}"
    used = _listed([f"{size}: {count:,}" for size, count in capacity.groups.items() if count])
    never = _listed([f"{size}" for size in capacity.never_used])
    unused = f"; never used, and captured: CP {never}" if never else ""
    yield "graph sizes", f"{len(capacity.sizes)} captured; groups with sequences, CP {used}{unused}"
    yield (
        "graph slots",
        f"{capacity.slots:,} for {capacity.microbatches:,} microbatches, so {capacity.pairs:,} "
        f"pairs of graphs per layer; pull request 5618: {capacity.upstream_slots:,}, so "
        f"{capacity.upstream_pairs:,}",
    )
    yield (
        "graph padding",
        f"{capacity.padding:.1%} of the rows hold no token, {capacity.packed_padding:.1%} without "
        f"capacity: {capacity.times_the_rows:.2f} times the rows",
    )
    inputs = inputs_of(options, capacity)
    if inputs is not None:
        layers = inputs.copies // capacity.pairs
        rope = f", RoPE {readable(inputs.rope)}" if inputs.rope else ""
        yield (
            "graph inputs",
            f"{readable(inputs.each)} per layer, slot and size{rope}: "
            f"{readable(inputs.total)} for {layers} layers with attention; pools come on top",
        )


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:_LISTED]) + (", …" if len(parts) > _LISTED else "")


def readable(size: float) -> str:
    """Bytes, short.

    >>> [readable(size) for size in (528, 16 << 20, 3 << 29)]
    ['528 B', '16.0 MiB', '1.5 GiB']
    """
    if size < 1024:
        return f"{size:.0f} B"
    power = min(len(_UNITS), (int(size).bit_length() - 1) // 10)
    return f"{size / 1024**power:.1f} {_UNITS[power - 1]}"


def picture(result: Result) -> Iterator[Text]:
    """One line per microbatch: its groups in rank order, as wide as they have ranks."""
    plan = result.plan
    shown = plan.microbatches[:_PICTURED]
    scale = max(1, -(-plan.ranks // _PICTURE_WIDTH))
    width = max(1, _PICTURE_WIDTH // plan.ranks)
    yield Text(f"first microbatches, rank 0 left to rank {plan.ranks - 1} right; CP size in groups")
    for number, microbatch in enumerate(shown):
        line = Text(f"{number:>4} ")
        for group in _drawn(microbatch, scale):
            line.append_text(_block(group, group.size // scale * width, plan.cp_sizes))
        line.append(f" {_busy(result.line, number):.0%} busy", ASIDE)
        yield line
    if len(plan.microbatches) > _PICTURED:
        yield Text(f"     … {len(plan.microbatches) - _PICTURED:,} more", ASIDE)


def _drawn(microbatch: Microbatch, scale: int) -> Iterator[Group]:
    """Groups by rank; those too small for a character are left to their neighbours."""
    groups = sorted(microbatch.groups, key=lambda group: group.first_rank)
    for _, near in itertools.groupby(groups, key=lambda group: group.first_rank // scale):
        yield max(near, key=lambda group: group.size)


def _block(group: Group, columns: int, sizes: tuple[int, ...]) -> Text:
    columns = max(1, columns)
    if group.dummy:
        return Text("·" * columns, ASIDE)
    label = str(group.size)
    place = sizes.index(group.size)
    colour = _COLOURS[place * (len(_COLOURS) - 1) // max(1, len(sizes) - 1)]
    if columns < len(label) + 2:
        return Text("▌" + "█" * (columns - 1), colour)
    return Text(f"▌{label}".ljust(columns, "─")[:columns], colour)


def _busy(line: Timeline, number: int) -> float:
    """Part of the ranks' time in a microbatch in which they compute."""
    here = [block for block in line.blocks if block.microbatch == number]
    if not here:
        return 0.0
    span = max(block.end for block in here) - min(block.start for block in here)
    work = sum(block.group.size * (block.end - block.start) for block in here)
    return work / (line.ranks * span) if span else 1.0
