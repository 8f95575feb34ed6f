"""A plan beside its baselines: what the text, the page and the flags are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ringproof.cli.lengths import read_lengths
from ringproof.cli.plan_flags import MegatronSettings, megatron_flags
from ringproof.cli.plan_memory import MeasuredMemory
from ringproof.cli.plan_options import (
    PlanOptions,
    SharedPlanOptions,
    sizes_that_hold,
    static_size,
)
from ringproof.errors import InputError, shown
from ringproof.options import require
from ringproof.reference.graphs import sizing
from ringproof.reference.planning.baselines import (
    PackingOrder,
    best_static_plan,
    padded_plan,
    static_plan,
)
from ringproof.reference.planning.costs import CostModel, make_batch
from ringproof.reference.planning.domain import Domain
from ringproof.reference.planning.lengths import Lengths, plain
from ringproof.reference.planning.plan import Plan
from ringproof.reference.planning.planner import (
    check_lengths,
    communication_is_free,
    make_plan,
    plan_batch,
)
from ringproof.reference.planning.simulate import Goal, Timeline, timeline
from ringproof.reference.planning.timing import reduction_seconds
from ringproof.reference.training.options import microbatches_in_flight

PACKING_ORDERS: Mapping[PackingOrder, str] = MappingProxyType(
    {
        "given": "packed in the order given, as Megatron-LM does",
        "sorted": "packed longest first, first fit",
    }
)
MOST_COMPARED = 65_536
"""Sequences up to which every static size and order is compared; it takes a few seconds."""
_DRAWN, _SEED = "lognormal:", "seed="


@dataclass(frozen=True)
class Baseline:
    """A way to run the same batch without the planner.

    Attributes:
        name: ``static``, ``sorted``, ``best`` (the best static size and order) or ``padded``.
        order: How sequences are packed, in words.
        plan: The plan of the baseline.
        model, goal: What it was costed with.
    """

    name: str
    order: str
    plan: Plan
    model: CostModel
    goal: Goal

    @cached_property
    def line(self) -> Timeline:
        """The plan in time; only a page shows it, and a million sequences take seconds."""
        lengths = self.plan.lengths
        computed = [max(lengths)] * len(lengths) if self.name == "padded" else lengths
        return timeline(self.plan, self.model, self.goal, computed=computed)

    @property
    def cp_size(self) -> int:
        """The one CP size of the baseline."""
        return self.plan.cp_sizes[0]


@dataclass(frozen=True)
class Result:
    """A plan, how it was asked for, and what it is measured against.

    With ``--graphs`` also what graphs have to hold for it, and with ``--memory-from`` its memory.
    """

    options: PlanOptions
    lengths: Lengths
    domain: Domain
    model: CostModel
    plan: Plan
    line: Timeline
    baselines: tuple[Baseline, ...]
    communication_is_free: bool
    graphs: sizing.GraphCapacity | None = None
    memory: MeasuredMemory | None = None

    @property
    def setting(self) -> str:
        """The cost model in words."""
        if self.options.cost == "attention-only":
            return "attention only: squared length over group size"
        options = self.options
        return plain(f"{options.model} on {options.hardware}, {options.comm}")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader has to know about the cost measure and the size of the batch."""
        ranks, count = self.domain.ranks, len(self.lengths.values)
        found = []
        if self.communication_is_free:
            found.append(
                "this cost measure has no price for communication, so no plan is faster than one "
                f"group of all {ranks} ranks; choose CP sizes with --cost full"
            )
        best, gain = min(self.gains(), key=lambda item: item[1])
        if gain < 1:
            found.append(
                f"CP {best.cp_size} for every sequence, {best.order}, takes {gain:.2f} of the "
                f"plan's time: {count:,} sequences are few for {ranks:,} ranks, which a plan all "
                "occupies; use static CP, fewer ranks or a larger global batch"
            )
        return tuple(found)

    @property
    def reduction(self) -> float:
        """Seconds that the reduction of the gradients takes after every iteration, whatever the
        plan, if nothing hides it; 0 where the cost model knows no seconds."""
        if self.options.cost == "attention-only":
            return 0.0
        held = self.options.shape().parameters / (self.options.tp * self.options.pp)
        machine, tp = self.options.machine(), self.options.tp
        return reduction_seconds(held, self.domain.ranks, machine, tp=tp)

    def as_json(self) -> dict[str, Any]:
        """The plan, with what graphs have to hold under a key of its own."""
        data = self.plan.as_json()
        if self.graphs is not None:
            data["graphs"] = self.graphs.as_json()
            if (inputs := inputs_of(self.options, self.graphs)) is not None:
                data["graphs"]["static_input_bytes"] = inputs.as_json()
        if self.memory is not None:
            tokens, fits = self.fullest, self.memory.budget or None
            needed = self.memory.needed(tokens)
            data["memory"] = {"tokens": tokens, "bytes": needed, "budget_that_fits": fits}
        return data

    @cached_property
    def fullest(self) -> int:
        """Tokens of the fullest microbatch of any rank, padding included."""
        groups = (group for microbatch in self.plan.microbatches for group in microbatch.groups)
        lengths, rows = self.plan.lengths, self.domain.rank_rows
        return max(sum(rows(lengths[one], at.size) for one in at.sequences) for at in groups)

    def flags(self, target: str) -> list[str]:
        """Flags of Megatron-LM for this plan; see `megatron_flags`."""
        longest, comm = max(self.lengths.values), self.options.comm
        made = MegatronSettings(
            self.options,
            self.domain,
            longest,
            len(self.lengths),
            comm,
            static_cp=self.options.static_cp,
            graphs=self.graphs,
        )
        return megatron_flags(made, target)

    def gains(self, added: float = 0.0) -> Iterator[tuple[Baseline, float]]:
        """How many times longer each baseline takes, with some time added to it and to the plan."""
        for baseline in self.baselines:
            whole = baseline.plan.metrics.makespan + added
            own = self.plan.metrics.makespan + added
            yield baseline, whole / own if own else 1.0


def plan_result(options: PlanOptions, lengths: Lengths) -> Result:
    """Plan a batch and its baselines.

    Raises:
        InputError: Options that contradict, or a batch that does not fit.
    """
    require(options, "lengths", "ranks", "max_tokens_per_rank")
    domain = options.domain(options.max_tokens_per_rank or 0, options.cp_sizes)
    model, goal = options.cost_model(options.comm), options.goal()
    lengths.refuse_longer(domain.longest)
    values = check_lengths(lengths.values, domain)
    batch = make_batch(values, domain, model)
    plan = plan_batch(values, batch, model, goal)
    size = static_size(options.static_cp, domain, max(values))
    return Result(
        options,
        lengths,
        domain,
        model,
        plan,
        timeline(plan, model, goal),
        tuple(_baselines(plan, domain, model, goal, size)),
        communication_is_free(batch),
        batches_capacity(options, plan, domain, model) if options.graphs else None,
    )


def _baselines(
    dynamic: Plan, domain: Domain, model: CostModel, goal: Goal, size: int
) -> Iterator[Baseline]:
    values, bound = dynamic.lengths, dynamic.metrics.lower_bound

    def static(name: str, order: PackingOrder, plan: Plan) -> Baseline:
        return Baseline(name, PACKING_ORDERS[order], plan, model, goal)

    plan = static_plan(values, domain, size, model, goal, bound=bound)
    yield static("static", "given", plan)
    if len(values) <= MOST_COMPARED:
        plan = static_plan(values, domain, size, model, goal, order="sorted", bound=bound)
        yield static("sorted", "sorted", plan)
        enough = sizes_that_hold(domain, max(values))
        _, order, plan = best_static_plan(values, domain, enough, model, goal, bound=bound)
        yield static("best", order, plan)
    padded = padded_plan(values, domain, size, model, goal, bound=bound)
    yield Baseline("padded", "each padded to the longest", padded, model, goal)


def batches_capacity(
    options: PlanOptions, plan: Plan, domain: Domain, model: CostModel
) -> sizing.GraphCapacity:
    """What graphs have to hold for this plan and, with ``--batches``, for the next draws.

    Raises:
        InputError: A batch that does not fit, by its draw.
    """
    found = [plan_capacity(options, plan, domain)]
    goal = options.goal()
    for source in next_draws(options.lengths, options.batches):
        lengths = read_lengths(source)
        lengths.refuse_longer(domain.longest)
        other = make_plan(lengths.values, domain, model, goal)
        found.append(plan_capacity(options, other, domain))
    return sizing.largest(found)


def plan_capacity(options: SharedPlanOptions, plan: Plan, domain: Domain) -> sizing.GraphCapacity:
    """What graphs have to hold for one plan of these options."""
    return sizing.graph_capacity(
        plan,
        rank_multiple=domain.rank_multiple,
        slots=microbatches_in_flight(len(plan.microbatches), pp=options.pp, vpp=options.vpp),
        pp=options.pp,
        max_sequences=domain.max_sequences,
    )


def next_draws(source: str, batches: int) -> Iterator[str]:
    """The same distribution with the seeds that follow, for all batches but the first.

    Raises:
        InputError: Several batches of what is no distribution.

    >>> list(next_draws("lognormal:mean=9,n=4,seed=7", 3))
    ['lognormal:mean=9,n=4,seed=8', 'lognormal:mean=9,n=4,seed=9']
    """
    if batches == 1:
        return
    if not source.startswith(_DRAWN):
        remedy = "draw lengths (lognormal:...), or plan one file after the other"
        raise InputError("--batches", f"{shown(source)} is one batch; {remedy}")
    parts = source.removeprefix(_DRAWN).split(",")
    rest = ",".join(part for part in parts if not part.startswith(_SEED))
    given = [float(part.removeprefix(_SEED)) for part in parts if part.startswith(_SEED)]
    first = int(given[0]) if given else 0
    for seed in range(first + 1, first + batches):
        yield f"{_DRAWN}{rest},{_SEED}{seed}"


def inputs_of(options: PlanOptions, capacity: sizing.GraphCapacity) -> sizing.StaticInputs | None:
    """Bytes of static inputs on a rank; ``None`` where the cost model knows no model."""
    if options.cost == "attention-only":
        return None
    shape = options.shape()
    return sizing.static_inputs(
        capacity,
        hidden=shape.hidden,
        rotary=0 if shape.kv_lora_rank else shape.head_dim,
        layers=-(-shape.attention_layers // options.pp),
        tp=options.tp,
    )
