"""``ringproof plan sweep``: compare budgets, group sizes and communication types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import typer

from ringproof.budget import Machine
from ringproof.cli.output import write_json
from ringproof.cli.plan_budget import check_sweep
from ringproof.cli.plan_flags import check_target, megatron_flags
from ringproof.cli.plan_graphs import plan_capacity
from ringproof.cli.plan_result import wanted
from ringproof.cli.plan_setup import PlanOptions, as_options
from ringproof.cli.plan_text import amount
from ringproof.cli.waiting import told_to_wait
from ringproof.errors import InputError
from ringproof.reference.graphs.sizing import GraphCapacity
from ringproof.reference.planning.costs import CostModel
from ringproof.reference.planning.domain import Domain, choose_cp_sizes
from ringproof.reference.planning.plan import Plan
from ringproof.reference.planning.sweep import Outcome, Setting, recommend, sweep
from ringproof.reference.planning.timing import COMM_TYPES

_SHOWN = 20
_HEADS = ("", "tokens/rank", "CP sizes", "comm", "makespan", "ratio", "microbatches", "Megatron")
_GRAPH_HEADS = ("graph sequences", "graph rows")

Chosen = tuple[Outcome | None, Outcome | None]
"""The recommended setting, and the one recommended for Megatron-LM."""
Graphs = Mapping[int, GraphCapacity]
"""What graphs have to hold, by the place of the setting; empty without ``--graphs``."""


def run(
    given: Mapping[str, Any],
    budgets: str,
    size_sets: list[str] | None,
    comm_types: str,
    json_path: str,
) -> None:
    """Plan the batch at every setting, and write the comparison.

    Raises:
        InputError: Options that contradict, or no setting that is possible.
    """
    options, target = PlanOptions.of({**given, "comm": comm_types}), given["target"]
    check_target(target)
    options.refuse_contradictions()
    with as_options():
        goal, settings = options.goal(), _settings(options, budgets, size_sets, comm_types)
        lengths = options.read()
        if not given["force"]:
            check_sweep(len(lengths.values), len(settings), Machine.here())
        with told_to_wait(f"planning {len(lengths.values):,} sequences {len(settings)} times"):
            outcomes = sweep(
                lengths.values, settings, lambda setting: _build(options, setting), goal
            )
    chosen = recommend(outcomes), recommend(outcomes, upstream=True)
    graphs = _graphs(options, outcomes)
    flags, usable = ["# no setting of this sweep is one of Megatron-LM's"], chosen[1]
    if usable is not None and usable.domain is not None:
        comm, sized = usable.setting.comm_type, graphs.get(usable.place)
        flags = megatron_flags(wanted(options, usable.domain, lengths, comm, sized), target)
    if json_path:
        best, usable_place = (None if one is None else one.place for one in chosen)
        data = {
            "version": 1,
            "sequences": len(lengths),
            "tokens": int(lengths.values.sum()),
            "settings": [_setting_data(one, graphs.get(one.place)) for one in outcomes],
            "recommended": best,
            "recommended_for_megatron": usable_place,
            "megatron_flags": flags,
        }
        write_json(data, json_path)
    if json_path != "-":
        for line in (*_table(outcomes, chosen, graphs), "", *_recommended(*chosen), *flags):
            typer.echo(line)


def _settings(
    options: PlanOptions, budgets: str, size_sets: list[str] | None, comm_types: str
) -> list[Setting]:
    """All combinations, the preferred ones first; sets of sizes that are the same only once."""
    sets: dict[tuple[int, ...], str] = {}
    for spec in size_sets or ("pow2", "divisors"):
        sets.setdefault(choose_cp_sizes(spec, options.ranks or 0, options.min_cp), spec)
    types = [name.strip() for name in (comm_types or ",".join(COMM_TYPES)).split(",")]
    for name in types:
        if name not in COMM_TYPES:
            remedy = f"choose from {','.join(COMM_TYPES)}"
            raise InputError("--comm", name, "is unknown", remedy)
    if options.inner_size is not None and "a2a+p2p" not in types:
        raise InputError("--inner-size", options.inner_size, "is for a2a+p2p", "leave it out")
    if options.cost == "attention-only":
        types = [""]
    return [
        Setting(budget, spec, comm)
        for comm in dict.fromkeys(types)
        for spec in dict.fromkeys(_possible(options, comm, *item) for item in sets.items())
        for budget in _budgets(budgets)
    ]


def _possible(options: PlanOptions, comm: str, sizes: tuple[int, ...], spec: str) -> str:
    """For a2a, the sizes that divide the heads, unless the user listed the sizes."""
    if comm != "a2a" or spec not in ("pow2", "divisors"):
        return spec
    heads = replace(options, inner_size=None).step_cost("p2p").kv_heads
    return ",".join(str(size) for size in sizes if heads % size == 0) or spec


def _budgets(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 13 and int(part) for part in parts):
        remedy = "write positive numbers such as 2048,4096"
        raise InputError("--max-tokens-per-rank", text or None, "is not a list of budgets", remedy)
    return list(dict.fromkeys(map(int, parts)))


def _build(options: PlanOptions, setting: Setting) -> tuple[Domain, CostModel]:
    domain = options.domain(setting.max_tokens_per_rank, setting.cp_sizes)
    if setting.comm_type != "a2a+p2p":
        options = replace(options, inner_size=None)
    return domain, options.cost_model(setting.comm_type)


def _graphs(options: PlanOptions, outcomes: Sequence[Outcome]) -> Graphs:
    return {
        item.place: plan_capacity(options, item.plan, item.domain)
        for item in outcomes
        if options.graphs and item.plan is not None and item.domain is not None
    }


def _setting_data(outcome: Outcome, graphs: GraphCapacity | None) -> dict[str, Any]:
    setting, plan = outcome.setting, outcome.plan
    data: dict[str, Any] = {
        "max_tokens_per_rank": setting.max_tokens_per_rank,
        "cp_sizes": setting.cp_sizes,
        "comm": setting.comm_type or None,
    }
    if plan is None:
        return {**data, "problem": outcome.problem}
    data |= {"megatron": outcome.upstream, "microbatches": len(plan.microbatches)}
    data["metrics"] = plan.as_json()["metrics"]
    return data if graphs is None else {**data, "graphs": graphs.as_json()}


def _table(outcomes: Sequence[Outcome], chosen: Chosen, graphs: Graphs) -> Iterator[str]:
    """One line per setting, the fastest first; what is impossible comes last, with its reason."""
    done = sorted(
        ((outcome.plan, outcome) for outcome in outcomes if outcome.plan is not None),
        key=lambda item: (item[0].metrics.makespan, item[1].place),
    )
    chosen_places = {outcome.place for outcome in chosen if outcome is not None}
    shown = [
        _row(plan, outcome, "*" if outcome.place in chosen_places else "", graphs)
        for rank, (plan, outcome) in enumerate(done)
        if rank < _SHOWN or outcome.place in chosen_places
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


def _row(plan: Plan, outcome: Outcome, mark: str, graphs: Graphs) -> tuple[str, ...]:
    metrics, setting = plan.metrics, outcome.setting
    row = (
        mark,
        f"{setting.max_tokens_per_rank:,}",
        setting.cp_sizes,
        setting.comm_type or "-",
        amount(metrics.makespan, metrics.unit),
        f"{metrics.ratio:.4f}",
        f"{len(plan.microbatches):,}",
        "yes" if outcome.upstream else "no",
    )
    if outcome.place not in graphs:
        return row
    found = graphs[outcome.place]
    return (*row, f"{found.entries:,}", f"{found.times_the_rows:.2f} times")


def _recommended(best: Outcome | None, usable: Outcome | None) -> Iterator[str]:
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
