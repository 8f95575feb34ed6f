"""``ringproof plan sweep``: compare budgets, group sizes and communication types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ringproof.cli.output import told_to_wait, write_result
from ringproof.cli.plan_flags import MegatronSettings, megatron_flags, upstream_sizes
from ringproof.cli.plan_options import SharedPlanOptions, SweepOptions, check_sweep
from ringproof.cli.plan_result import plan_capacity
from ringproof.cli.plan_text import amount
from ringproof.errors import InputError
from ringproof.options import require
from ringproof.reference.graphs.sizing import GraphCapacity
from ringproof.reference.planning.domain import Domain, choose_cp_sizes
from ringproof.reference.planning.plan import Plan
from ringproof.reference.planning.planner import make_plan

AS_GOOD = 1.01
"""Settings within this factor of the fastest are alike: a model of time is not more exact."""
MAX_SETTINGS = 1000
_SHOWN = 20
_HEADS = ("", "tokens/rank", "CP sizes", "comm", "makespan", "ratio", "microbatches", "Megatron")
_GRAPH_HEADS = ("graph sequences", "graph rows")


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep, with CP sizes as the user wrote them.

    The communication type is empty where the cost model knows none.
    """

    max_tokens_per_rank: int
    cp_sizes: str
    comm: str

    def __str__(self) -> str:
        comm = f", {self.comm}" if self.comm else ""
        return f"{self.max_tokens_per_rank:,} tokens per rank, CP sizes {self.cp_sizes}{comm}"


@dataclass(frozen=True)
class InfeasiblePoint:
    """A setting for which there is no plan, and why."""

    setting: SweepPoint
    problem: str


@dataclass(frozen=True)
class SweepOutcome:
    """The plan of a setting; of settings alike, the one with the first place is preferred.

    ``graphs`` is what graphs have to hold for it, if that was asked for.
    """

    setting: SweepPoint
    place: int
    domain: Domain
    plan: Plan
    graphs: GraphCapacity | None = None

    @property
    def upstream(self) -> bool:
        """Whether Megatron-LM's dynamic CP can be set to it.

        There, sizes are all powers of two from a smallest to the domain, itself one.
        """
        sizes = self.domain.cp_sizes
        known = sizes == upstream_sizes(self.domain.ranks, sizes[0])
        return known and self.setting.comm != "a2a+p2p"


def run(options: SweepOptions, json_path: str) -> None:
    """Plan the batch at every setting, and write the comparison.

    Raises:
        InputError: Options that contradict, or no setting that is possible.
    """
    require(options, "lengths", "ranks", "budgets")
    settings = _settings(options)
    lengths = options.read()
    if not options.force:
        check_sweep(len(lengths.values), len(settings))
    with told_to_wait(f"planning {len(lengths.values):,} sequences {len(settings)} times"):
        outcomes = sweep(lengths.values, settings, options)
    best, usable = recommend(outcomes), recommend(outcomes, upstream=True)
    flags = ["# no setting of this sweep is one of Megatron-LM's"]
    if usable is not None:
        longest, comm = max(lengths.values), usable.setting.comm or "p2p"
        made = MegatronSettings(
            options, usable.domain, longest, len(lengths), comm, graphs=usable.graphs
        )
        flags = megatron_flags(made, options.target)
    data = {
        "version": 1,
        "sequences": len(lengths),
        "tokens": sum(lengths.values),
        "settings": [_setting_data(one) for one in outcomes],
        "recommended": best and best.place,
        "recommended_for_megatron": usable and usable.place,
        "megatron_flags": flags,
    }
    write_result(data, (*_table(outcomes, best, usable), *flags), json_path)


def sweep(
    lengths: Sequence[int], settings: Sequence[SweepPoint], options: SharedPlanOptions
) -> tuple[SweepOutcome | InfeasiblePoint, ...]:
    """Plan the batch at every setting; one that is impossible is kept with its reason.

    Args:
        lengths: Tokens of each sequence.
        settings: At most `MAX_SETTINGS`, the preferred ones first.
        options: What all settings have in common.

    Raises:
        InputError: Too many settings, or none that is possible.
    """
    if not 0 < len(settings) <= MAX_SETTINGS:
        sentence = f"{len(settings)} settings are not between 1 and {MAX_SETTINGS}"
        raise InputError("sweep", f"{sentence}; vary less at a time")
    outcomes = [_tried(lengths, one, place, options) for place, one in enumerate(settings)]
    first = outcomes[0]
    if isinstance(first, InfeasiblePoint) and not any(
        isinstance(one, SweepOutcome) for one in outcomes
    ):
        sentence = f"no setting is possible: {first.problem}; change budgets or sizes"
        raise InputError("sweep", sentence)
    return tuple(outcomes)


def _tried(
    lengths: Sequence[int], setting: SweepPoint, place: int, options: SharedPlanOptions
) -> SweepOutcome | InfeasiblePoint:
    if setting.comm != "a2a+p2p":
        options = replace(options, inner_size=None)
    try:
        domain = options.domain(setting.max_tokens_per_rank, setting.cp_sizes)
        plan = make_plan(lengths, domain, options.cost_model(setting.comm), options.goal())
    except InputError as error:
        return InfeasiblePoint(setting, str(error))
    graphs = plan_capacity(options, plan, domain) if options.graphs else None
    return SweepOutcome(setting, place, domain, plan, graphs)


def recommend(
    outcomes: Iterable[SweepOutcome | InfeasiblePoint], *, upstream: bool = False
) -> SweepOutcome | None:
    """The fastest setting; of those as good, the one with the smallest budget (least memory).

    With ``upstream``, only settings that Megatron-LM can be set to.
    """
    done = [
        one for one in outcomes if isinstance(one, SweepOutcome) and (one.upstream or not upstream)
    ]
    limit = AS_GOOD * min((one.plan.metrics.makespan for one in done), default=0.0)
    alike = [one for one in done if one.plan.metrics.makespan <= limit]
    return min(alike, key=lambda one: (one.setting.max_tokens_per_rank, one.place), default=None)


def _settings(options: SweepOptions) -> list[SweepPoint]:
    """All combinations, the preferred ones first; sets of sizes that are the same only once."""
    sets: dict[tuple[int, ...], str] = {}
    for spec in options.size_sets or ("pow2", "divisors"):
        sets.setdefault(choose_cp_sizes(spec, options.ranks or 0, options.min_cp), spec)
    types = options.types if options.cost == "full" else ("",)
    return [
        SweepPoint(budget, spec, comm)
        for comm in types
        for spec in dict.fromkeys(_possible(options, comm, *item) for item in sets.items())
        for budget in dict.fromkeys(options.budgets)
    ]


def _possible(options: SharedPlanOptions, comm: str, sizes: tuple[int, ...], spec: str) -> str:
    """For a2a, the sizes that divide the heads, unless the user listed the sizes."""
    if comm != "a2a" or spec not in ("pow2", "divisors"):
        return spec
    heads = replace(options, inner_size=None).step_cost("p2p").kv_heads
    return ",".join(str(size) for size in sizes if heads % size == 0) or spec


def _setting_data(one: SweepOutcome | InfeasiblePoint) -> dict[str, Any]:
    data = {**asdict(one.setting), "comm": one.setting.comm or None}
    if isinstance(one, InfeasiblePoint):
        return {**data, "problem": one.problem}
    data |= {"megatron": one.upstream, "microbatches": len(one.plan.microbatches)}
    data["metrics"] = one.plan.metrics.as_json()
    return data if one.graphs is None else {**data, "graphs": one.graphs.as_json()}


def _table(
    outcomes: Sequence[SweepOutcome | InfeasiblePoint],
    best: SweepOutcome | None,
    usable: SweepOutcome | None,
) -> Iterator[str]:
    """One line per setting, the fastest first; what is impossible comes last, with its reason.

    Then the recommendation in words.
    """
    done = [one for one in outcomes if isinstance(one, SweepOutcome)]
    done.sort(key=lambda one: one.plan.metrics.makespan)
    chosen = [one.place for one in (best, usable) if one is not None]
    shown = [
        _row(one, "*" if one.place in chosen else "")
        for rank, one in enumerate(done)
        if rank < _SHOWN or one.place in chosen
    ]
    graphs = done[0].graphs is not None
    rows = [_HEADS + (_GRAPH_HEADS if graphs else ()), *shown]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if graphs:
        yield "makespans are without the rows that a capacity adds: the last column"
    if len(done) > len(shown):
        yield f"… {len(done) - len(shown)} slower ones; --json has all"
    for one in outcomes:
        if isinstance(one, InfeasiblePoint):
            yield f"impossible: {one.setting}: {one.problem}"
    yield ""
    if best is not None:
        metrics = best.plan.metrics
        yield f"recommended: {best.setting}: {amount(metrics.makespan, metrics.unit)}"
        if usable is not None and usable is not best:
            slower = usable.plan.metrics.makespan / metrics.makespan
            yield f"for Megatron-LM: {usable.setting}: {slower:.2f} times as long"


def _row(one: SweepOutcome, mark: str) -> tuple[str, ...]:
    metrics, setting, graphs = one.plan.metrics, one.setting, one.graphs
    row = (
        mark,
        f"{setting.max_tokens_per_rank:,}",
        setting.cp_sizes,
        setting.comm or "-",
        amount(metrics.makespan, metrics.unit),
        f"{metrics.ratio:.4f}",
        f"{len(one.plan.microbatches):,}",
        "yes" if one.upstream else "no",
    )
    return (
        row
        if graphs is None
        else (*row, f"{graphs.entries:,}", f"{graphs.times_the_rows:.2f} times")
    )
