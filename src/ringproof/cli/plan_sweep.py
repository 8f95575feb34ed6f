"""``ringproof plan sweep``: which budget, group sizes and communication?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringproof.cli.output import write_json
from ringproof.cli.plan_options import JsonOption, need_numpy, with_batch_options
from ringproof.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringproof.cli.plan_setup import PlanOptions
    from ringproof.reference.graphs.sizing import GraphCapacity
    from ringproof.reference.planning.domain import Domain
    from ringproof.reference.planning.lengths import Lengths
    from ringproof.reference.planning.sweep import Outcome, Setting

    _Graphs = Mapping[int, GraphCapacity]

EXAMPLE = (
    "Example: ringproof plan sweep --lengths lengths.csv --ranks 24 "
    "--max-tokens-per-rank 2048,4096 --cp-sizes pow2 --cp-sizes divisors --comm p2p,a2a"
)
ALL_COMM = "p2p,all_gather,a2a,a2a+p2p"
_SHOWN = 20


@with_batch_options
def sweep(
    context: typer.Context,
    *,
    budgets: Annotated[
        str,
        typer.Option(
            "--max-tokens-per-rank",
            metavar="C,C,...",
            help="Token budgets per rank to try, separated by commas.",
        ),
    ] = "",
    size_sets: Annotated[
        list[str] | None,
        typer.Option(
            "--cp-sizes",
            metavar="SET",
            help="Set of CP group sizes to try: pow2, divisors or a list. The option may be "
            "repeated; "
            "pow2 and divisors are tried when it is not given.",
        ),
    ] = None,
    comm_types: Annotated[
        str,
        typer.Option(
            "--comm",
            metavar="TYPE,...",
            help=f"Communication types to try, separated by commas: {ALL_COMM}.",
        ),
    ] = "",
    json_path: JsonOption = "",
) -> None:
    """Plan one batch at many settings, and recommend one.

    The fastest setting is recommended. Of settings within 1% of it, the one with the smallest
    budget is taken, because it needs the least memory.
    """
    need_numpy()
    from ringproof.cli.plan_flags import check_target
    from ringproof.cli.plan_setup import PlanOptions, as_options
    from ringproof.reference.planning.sweep import recommend
    from ringproof.reference.planning.sweep import sweep as run

    options = PlanOptions.of({**context.params, "comm": comm_types})
    target = context.params["target"]
    check_target(target)
    options.refuse_contradictions()
    with as_options():
        goal, found = options.goal(), _settings(options, budgets, size_sets, comm_types)
        read = options.read()
        outcomes = run(read.values, found, lambda setting: _build(options, setting), goal)
    best, usable = recommend(outcomes), recommend(outcomes, upstream=True)
    graphs = _graphs(options, outcomes)
    flags = _flags(options, read, usable, target, graphs)
    if json_path:
        write_json(_data(read, outcomes, (best, usable), flags, graphs), json_path)
    if json_path != "-":
        _print(outcomes, (best, usable), flags, graphs)


def _settings(
    options: PlanOptions, budgets: str, size_sets: list[str] | None, comm_types: str
) -> list[Setting]:
    """All combinations, the preferred ones first; sets of sizes that are the same only once."""
    from ringproof.reference.planning.domain import choose_cp_sizes
    from ringproof.reference.planning.sweep import Setting
    from ringproof.reference.planning.traffic import COMM_TYPES

    sets: dict[tuple[int, ...], str] = {}
    for spec in size_sets or ("pow2", "divisors"):
        sets.setdefault(choose_cp_sizes(spec, options.ranks or 0, options.min_cp), spec)
    types = [name.strip() for name in (comm_types or ALL_COMM).split(",")]
    for name in types:
        if name not in COMM_TYPES:
            raise InputError("--comm", name, "is unknown", f"choose from {ALL_COMM}")
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
    """For a2a, the sizes that hand out whole heads, where the user left the choice to us."""
    if comm != "a2a" or spec not in ("pow2", "divisors"):
        return spec
    heads = getattr(replace(options, inner_size=None).cost_model("p2p"), "kv_heads", 1)
    return ",".join(str(size) for size in sizes if heads % size == 0) or spec


def _budgets(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 13 and int(part) for part in parts):
        remedy = "write positive numbers such as 2048,4096"
        raise InputError("--max-tokens-per-rank", text or None, "is not a list of budgets", remedy)
    return list(dict.fromkeys(map(int, parts)))


def _build(options: PlanOptions, setting: Setting) -> tuple[Domain, Any]:
    domain = options.domain(setting.max_tokens_per_rank, setting.cp_sizes)
    if setting.comm_type != "a2a+p2p":
        options = replace(options, inner_size=None)
    return domain, options.cost_model(setting.comm_type)


def _graphs(options: PlanOptions, outcomes: tuple[Outcome, ...]) -> _Graphs:
    """What graphs have to hold, by the place of each setting that is possible."""
    if not options.graphs:
        return {}
    from ringproof.cli.plan_graphs import plan_capacity

    return {
        item.place: plan_capacity(options, item.plan, item.domain)
        for item in outcomes
        if item.plan is not None and item.domain is not None
    }


def _flags(
    options: PlanOptions, lengths: Lengths, usable: Outcome | None, target: str, graphs: _Graphs
) -> list[str]:
    from ringproof.cli.plan_flags import megatron_flags
    from ringproof.cli.plan_result import wanted

    if usable is None or usable.domain is None:
        return ["# no setting of this sweep is one of Megatron-LM's"]
    comm, sized = usable.setting.comm_type, graphs.get(usable.place)
    return megatron_flags(wanted(options, usable.domain, lengths, comm, sized), target)


def _data(
    lengths: Lengths,
    outcomes: tuple[Outcome, ...],
    chosen: tuple[Outcome | None, Outcome | None],
    flags: list[str],
    graphs: _Graphs,
) -> dict[str, Any]:
    best, usable = (None if outcome is None else outcome.place for outcome in chosen)
    return {
        "version": 1,
        "sequences": len(lengths),
        "tokens": int(lengths.values.sum()),
        "settings": [_setting_data(outcome, graphs.get(outcome.place)) for outcome in outcomes],
        "recommended": best,
        "recommended_for_megatron": usable,
        "megatron_flags": flags,
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
    sized = {} if graphs is None else {"graphs": graphs.as_json()}
    return {
        **data,
        "megatron": outcome.upstream,
        "microbatches": len(plan.microbatches),
        "metrics": plan.as_json()["metrics"],
        **sized,
    }


def _print(
    outcomes: tuple[Outcome, ...],
    chosen: tuple[Outcome | None, Outcome | None],
    flags: list[str],
    graphs: _Graphs,
) -> None:
    from ringproof.cli.plan_sweep_text import recommended, table

    for line in table(outcomes, chosen, _SHOWN, graphs):
        typer.echo(line)
    typer.echo("")
    for line in recommended(*chosen):
        typer.echo(line)
    for line in flags:
        typer.echo(line)
