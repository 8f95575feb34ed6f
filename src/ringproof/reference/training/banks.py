"""Graph banks of a run: one for each stage of this rank, captured before the first step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.graphs.bank import BankOptions, GraphBank, capture_bank
from ringproof.reference.graphs.choose import choose_backend
from ringproof.reference.graphs.estimate import check_fits, estimated_bytes, need_of
from ringproof.reference.graphs.scopes import Part, parts_of
from ringproof.reference.model.batch import IGNORED, PackedBatch, Totals
from ringproof.reference.model.stage import Stage
from ringproof.reference.model.static import with_metadata
from ringproof.reference.packing.capacity import RankCapacity, hollow
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.dynamic import ContextParallelGroup, DynamicGroups
from ringproof.reference.training.agreement import refuse_together, world
from ringproof.reference.training.bank_memory import graphs_record, holding_of
from ringproof.reference.training.graph_options import microbatches_in_flight
from ringproof.reference.training.graph_records import GraphsRecord
from ringproof.reference.training.options import TrainOptions
from ringproof.reference.training.routing import TokenNeeds
from ringproof.reference.training.schedules import Schedule, StepPlan


@dataclass(frozen=True)
class CapturedBanks:
    """The graph banks of a rank and their record.

    Args:
        banks: One bank for each stage of this rank; empty without ``--graphs bank``.
        record: Record of all ranks; ``None`` without ``--graphs bank``.
    """

    banks: tuple[GraphBank, ...] = ()
    record: GraphsRecord | None = None


@contextmanager
def graph_banks(
    options: TrainOptions,
    schedule: Schedule,
    stages: Sequence[Stage],
    groups: DynamicGroups,
    needs: TokenNeeds,
) -> Iterator[CapturedBanks]:
    """Capture every CP size for each stage of this rank, and free all graphs on exit.

    A collective over the world. If one rank cannot capture, all ranks raise, so that no pipeline
    stage waits for it. Without ``--graphs bank`` nothing is captured.

    Args:
        options: Of the run.
        schedule: Schedule of the run, which has the CP sizes and the capacity.
        stages: Stages of this rank.
        groups: CP groups of every size.
        needs: Tokens that this rank needs in a step.

    Raises:
        InputError: The backend is not available here, a part cannot be captured, or the graphs do
            not fit in the memory that is free.
    """
    if options.graphs.graphs != "bank":
        yield CapturedBanks()
        return
    capacity, device = schedule.capacity, needs.device or torch.device("cpu")
    assert capacity is not None, "graphs have one, see TrainOptions"
    made = _bank_options(options, capacity, device)
    with ExitStack() as stack:
        samples = [
            padding_batch(capacity.of_group(size), groups.group(size), needs, schedule)
            for size in sorted(schedule.sizes)
        ]

        def parts() -> list[tuple[Part, ...]]:
            return [parts_of(stage, options.graphs.graph_scope) for stage in stages]

        def estimate() -> int:
            count = len(samples)
            return sum(estimated_bytes(part, samples[-1], count, made) for part in parts())

        def capture() -> tuple[GraphBank, ...]:
            banks = []
            for part in parts():
                banks.append(capture_bank(part, samples, made))
                stack.callback(banks[-1].reset)
            return tuple(banks)

        needed = refuse_together(estimate, world(), device=device)
        check_fits(need_of(needed, device), capacity.rows)
        started = time.perf_counter()
        banks = refuse_together(capture, world(), device=device)
        yield CapturedBanks(banks, _record(options, made, schedule, banks, started=started))


def _bank_options(
    options: TrainOptions, capacity: RankCapacity, device: torch.device
) -> BankOptions:
    return BankOptions(
        backend=choose_backend(options.graphs.graph_backend, device),
        slots=slots_of(options),
        warm_up=options.graphs.graph_warmup,
        shape=(capacity.rows // options.parallel.row_shards, options.model.config.hidden),
        dtype=getattr(torch, options.model.dtype),
        device=device,
        overflow=options.graphs.graphs_overflow,
    )


def _record(
    options: TrainOptions,
    made: BankOptions,
    schedule: Schedule,
    banks: Sequence[GraphBank],
    *,
    started: float,
) -> GraphsRecord:
    """Return the record of the captures. A collective over the world."""
    own = holding_of(
        banks,
        made,
        schedule.sizes,
        stage=options.parallel.layout.coordinate("pp", dist.get_rank()),
        seconds=time.perf_counter() - started,
    )
    return graphs_record(own, made.backend.name, options.graphs.graph_scope, made.slots)


def slots_of(options: TrainOptions) -> int:
    """Return the number of microbatches that may be between forward and backward at a time."""
    layout, vpp = options.parallel.layout, options.parallel.vpp
    most = microbatches_in_flight(
        options.batch.global_batch * vpp * layout.pp, pp=layout.pp, vpp=vpp
    )
    return options.graphs.graph_slots or most


def check_slots(options: TrainOptions, step: StepPlan) -> None:
    """Refuse a plan that has more microbatches in flight than there are slots.

    Raises:
        InputError: There are too few slots, unless microbatches without a slot are computed
            eagerly.
    """
    graphs, layout = options.graphs, options.parallel.layout
    if graphs.graphs != "bank" or graphs.graphs_overflow == "eager":
        return
    count, slots = len(step.plan.microbatches), slots_of(options)
    needed = microbatches_in_flight(count, pp=layout.pp, vpp=options.parallel.vpp)
    if needed > slots:
        problem = f"a plan of {count} microbatches has {needed} in flight"
        remedy = "raise it, or use --graphs-overflow eager"
        raise InputError("graph_slots", slots, problem, remedy)


def padding_batch(
    capacity: Capacity, group: ContextParallelGroup, needs: TokenNeeds, schedule: Schedule
) -> PackedBatch:
    """Return a microbatch of padding alone, which every layer accepts. Captures run on it."""
    rows, device = capacity.rows // group.size, needs.device
    nothing = torch.zeros(rows, dtype=torch.int64, device=device)
    shape = (1 + needs.depths, rows)
    batch = PackedBatch(
        packed=hollow(capacity),
        group=group,
        comm_type=needs.comm_type,
        partition=schedule.partition,
        positions=nothing,
        sequences=nothing,
        real=nothing.bool(),
        tokens=nothing if needs.embeds else None,
        future=torch.full(shape, IGNORED, device=device) if needs.predicts else None,
        totals=Totals(0, (0,) * (1 + needs.depths)),
    )
    return with_metadata(batch, capacity)


def replayed_in_step(
    banks: Sequence[GraphBank], sizes: Sequence[int], device: torch.device
) -> tuple[dict[int, int], int]:
    """Count the passes of a microbatch through a stage with graphs, by CP size, and without graphs.

    The counts are sums over the world. A collective, unless there are no banks.
    """
    if not banks:
        return {}, 0
    counts = [sum(bank.replayed.get(size, 0) for bank in banks) for size in sizes]
    found = torch.tensor([*counts, sum(bank.eager for bank in banks)], device=device)
    dist.all_reduce(found)
    *replayed, eager = found.tolist()
    return dict(zip(sizes, replayed, strict=True)), eager
