"""A plan for a reader at a terminal: the numbers, and a small picture of its beginning."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ringproof.cli.plan_graphs import graph_lines
from ringproof.cli.plan_result import Result
from ringproof.reference.planning.plan import Group, Microbatch
from ringproof.reference.planning.simulate import Timeline

_COLOURS = ("bright_blue", "cyan", "green", "yellow", "magenta", "red")
_PICTURED = 6
_PICTURE_WIDTH = 64


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
    console = Console()
    graphs = graph_lines(result.options, result.graphs) if result.graphs else ()
    for name, value in itertools.chain(summary(result), graphs):
        line = Text(f"{name:<16}", "dim")
        console.print(line.append(value, "none"), soft_wrap=True, highlight=False)
    console.print()
    for line in picture(result):
        console.print(line, soft_wrap=True, highlight=False)


def summary(result: Result) -> Iterator[tuple[str, str]]:
    """Names and values, in the order of a reader's questions."""
    plan, metrics, values = result.plan, result.plan.metrics, result.lengths.values
    yield "batch", f"{len(values):,} sequences, {int(values.sum()):,} tokens, {_spread(result)}"
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
            f"{gain:.2f} times as fast (CP {baseline.cp_size}, {baseline.dealing}: "
            f"{amount(other.makespan, other.unit)}, {len(baseline.plan.microbatches):,} "
            f"microbatches, {other.padding_fraction:.1%} padding)",
        )
    if result.reduction:
        gains = ", ".join(
            f"{gain:.2f} against {one.name}" for one, gain in result.gains(result.reduction)
        )
        reduced = amount(result.reduction, metrics.unit)
        yield "gradients", f"{reduced} to reduce them where nothing hides it: then {gains}"
    yield (
        "idle",
        f"{result.line.idle_fraction:.1%} of the ranks' time, overheads included",
    )
    yield "padding", f"{metrics.padding_fraction:.2%} of the tokens in groups"
    yield "CP sizes", _histogram(result)
    yield "planned in", f"{1e3 * metrics.planning_seconds:.1f} ms"
    for note in result.lengths.notes:
        yield "note", note
    for warning in result.warnings:
        yield "warning", warning


def _spread(result: Result) -> str:
    values = sorted(result.lengths.values.tolist())
    middle = values[len(values) // 2]
    return f"{values[0]:,} to {values[-1]:,}, median {middle:,}"


def _histogram(result: Result) -> str:
    counts = result.plan.metrics.cp_histogram
    total = sum(counts.values())
    return ", ".join(
        f"{size}: {count:,} sequences ({count / total:.0%})" for size, count in counts.items()
    )


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
        line.append(f" {_busy(result.line, number):.0%} busy", "dim")
        yield line
    if len(plan.microbatches) > _PICTURED:
        yield Text(f"     … {len(plan.microbatches) - _PICTURED:,} more", "dim")


def _drawn(microbatch: Microbatch, scale: int) -> Iterator[Group]:
    """Groups by rank; those too small for a character are left to their neighbours."""
    groups = sorted(microbatch.groups, key=lambda group: group.first_rank)
    for _, near in itertools.groupby(groups, key=lambda group: group.first_rank // scale):
        yield max(near, key=lambda group: group.size)


def _block(group: Group, columns: int, sizes: tuple[int, ...]) -> Text:
    columns = max(1, columns)
    if group.dummy:
        return Text("·" * columns, "dim")
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
