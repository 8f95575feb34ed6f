"""``ringproof plan --graphs``: what graphs have to hold, for one batch or for several draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ringproof.cli.lengths import read_lengths
from ringproof.cli.plan_setup import PlanOptions
from ringproof.errors import InputError
from ringproof.reference.graphs.sizing import (
    GraphCapacity,
    StaticInputs,
    graph_capacity,
    largest,
    static_inputs,
)
from ringproof.reference.planning.costs import CostModel
from ringproof.reference.planning.domain import Domain
from ringproof.reference.planning.lengths import plain
from ringproof.reference.planning.plan import Plan
from ringproof.reference.planning.planner import make_plan
from ringproof.reference.training.options import microbatches_in_flight

_DRAWN, _SEED = "lognormal:", "seed="
_UNITS = ("KiB", "MiB", "GiB", "TiB")
_LISTED = 8
"""CP sizes in a line."""


def batches_capacity(
    options: PlanOptions, plan: Plan, domain: Domain, model: CostModel
) -> GraphCapacity:
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
    return largest(found)


def plan_capacity(options: PlanOptions, plan: Plan, domain: Domain) -> GraphCapacity:
    """What graphs have to hold for one plan of these options."""
    return graph_capacity(
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
        raise InputError("--batches", batches, f"{plain(source)} is one batch", remedy)
    parts = source.removeprefix(_DRAWN).split(",")
    rest = ",".join(part for part in parts if not part.startswith(_SEED))
    given = [float(part.removeprefix(_SEED)) for part in parts if part.startswith(_SEED)]
    first = int(given[0]) if given else 0
    for seed in range(first + 1, first + batches):
        yield f"{_DRAWN}{rest},{_SEED}{seed}"


def inputs_of(options: PlanOptions, capacity: GraphCapacity) -> StaticInputs | None:
    """Bytes of static inputs on a rank; ``None`` where the cost model knows no model."""
    if options.cost == "attention-only":
        return None
    shape = options.shape()
    return static_inputs(
        capacity,
        hidden=shape.hidden,
        rotary=0 if shape.kv_lora_rank else shape.head_dim,
        layers=-(-shape.attention_layers // options.pp),
        tp=options.tp,
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


def graphs_json(options: PlanOptions, capacity: GraphCapacity) -> dict[str, object]:
    """As plain data: the key ``graphs`` of a plan."""
    inputs = inputs_of(options, capacity)
    data: dict[str, object] = capacity.as_json()
    return data if inputs is None else {**data, "static_input_bytes": inputs.as_json()}
