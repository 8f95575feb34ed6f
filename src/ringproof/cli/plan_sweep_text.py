"""A sweep for a reader: one line per setting, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ringproof.cli.plan_text import amount
from ringproof.reference.graphs.sizing import GraphCapacity
from ringproof.reference.planning.plan import Plan
from ringproof.reference.planning.sweep import Outcome

_HEADS = ("", "tokens/rank", "CP sizes", "comm", "makespan", "ratio", "microbatches", "Megatron")
_GRAPH_HEADS = ("graph sequences", "graph rows")


def table(
    outcomes: Sequence[Outcome],
    chosen: tuple[Outcome | None, Outcome | None],
    most: int,
    graphs: Mapping[int, GraphCapacity],
) -> Iterator[str]:
    """Lines of columns; what is impossible comes last, with its reason.

    Args:
        outcomes: Outcomes of a sweep.
        chosen: The recommended ones.
        most: Lines of what is possible.
        graphs: What graphs have to hold, by place; may be empty.
    """
    done = sorted(
        ((outcome.plan, outcome) for outcome in outcomes if outcome.plan is not None),
        key=lambda item: (item[0].metrics.makespan, item[1].place),
    )
    chosen_places = {outcome.place for outcome in chosen if outcome is not None}
    shown = [
        (*_row(plan, outcome, chosen_places), *_graph_cells(graphs, outcome))
        for rank, (plan, outcome) in enumerate(done)
        if rank < most or outcome.place in chosen_places
    ]
    rows = [_HEADS + (_GRAPH_HEADS if graphs else ()), *shown]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if graphs:
        yield "makespans are without the rows that a capacity adds: the last column"
    if len(done) > len(shown):
        yield f"… {len(done) - len(shown)} slower ones; --json has all"
    for outcome in outcomes:
        if outcome.plan is None:
            yield f"impossible: {_named(outcome)}: {outcome.problem}"


def _row(plan: Plan, outcome: Outcome, chosen: set[int]) -> tuple[str, ...]:
    metrics, setting = plan.metrics, outcome.setting
    return (
        "*" if outcome.place in chosen else "",
        f"{setting.max_tokens_per_rank:,}",
        setting.cp_sizes,
        setting.comm_type or "-",
        amount(metrics.makespan, metrics.unit),
        f"{metrics.ratio:.4f}",
        f"{len(plan.microbatches):,}",
        "yes" if outcome.upstream else "no",
    )


def _graph_cells(graphs: Mapping[int, GraphCapacity], outcome: Outcome) -> Iterator[str]:
    """Entries of a pack, and rows at capacity over rows without."""
    if outcome.place in graphs:
        found = graphs[outcome.place]
        yield f"{found.entries:,}"
        yield f"{found.times_the_rows:.2f} times"


def recommended(best: Outcome | None, usable: Outcome | None) -> Iterator[str]:
    """The recommendation in words."""
    if best is None or best.plan is None:
        return
    metrics = best.plan.metrics
    yield f"recommended: {_named(best)}: {amount(metrics.makespan, metrics.unit)}"
    if usable is not None and usable.plan is not None and usable.place != best.place:
        slower = usable.plan.metrics.makespan / metrics.makespan
        yield f"for Megatron-LM: {_named(usable)}: {slower:.2f} times as long"


def _named(outcome: Outcome) -> str:
    setting = outcome.setting
    comm = f", {setting.comm_type}" if setting.comm_type else ""
    return f"{setting.max_tokens_per_rank:,} tokens per rank, CP sizes {setting.cp_sizes}{comm}"
