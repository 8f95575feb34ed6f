"""Graph banks of a run: one for each stage of this rank, captured before the first step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import CaptureBackend
from ringproof.reference.graphs.bank import BankOptions, GraphBank, GraphKey, capture_bank
from ringproof.reference.graphs.replay import GraphMemory
from ringproof.reference.graphs.scopes import parts_of
from ringproof.reference.model.batch import IGNORED, PackedBatch, Totals
from ringproof.reference.model.stage import Stage
from ringproof.reference.model.static import with_metadata
from ringproof.reference.packing.capacity import padding_pack
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.dynamic import ContextParallelGroup, DynamicGroups
from ringproof.reference.training.agreement import gathered, refuse_together
from ringproof.reference.training.options import TrainOptions, microbatches_in_flight
from ringproof.reference.training.records import GraphsRecord, SizeMemory
from ringproof.reference.training.routing import TokenNeeds
from ringproof.reference.training.schedules import Schedule, StepPlan


@contextmanager
def graph_banks(
    options: TrainOptions,
    schedule: Schedule,
    stages: Sequence[Stage],
    groups: DynamicGroups,
    needs: TokenNeeds,
    *,
    backend: CaptureBackend | None,
) -> Iterator[tuple[tuple[GraphBank, ...], GraphsRecord | None]]:
    """Capture every CP size for each stage of this rank, and free all graphs on exit.

    A collective over the world. If one rank cannot capture, all ranks raise, so that no pipeline
    stage waits for it. Without ``--graphs bank`` nothing is captured, and no backend is needed.

    Yields:
        One bank for each stage of this rank, and the record of all ranks.

    Raises:
        InputError: A part cannot be captured.
    """
    if options.graphs.graphs != "bank":
        yield (), None
        return
    capacity = schedule.capacity
    assert capacity is not None, "graphs have one, see TrainOptions"
    assert backend is not None, "a caller that asks for graphs passes a backend"
    made = BankOptions(
        backend=backend,
        slots=options.slots,
        warm_up=options.graphs.graph_warmup,
        shape=(capacity.rows // options.parallel.row_shards, options.model.config.hidden),
        dtype=getattr(torch, options.model.dtype),
        device=needs.device or torch.device("cpu"),
        overflow=options.graphs.graphs_overflow,
    )
    samples = [
        padding_batch(capacity.of_group(size), groups.group(size), needs, schedule)
        for size in sorted(schedule.sizes)
    ]
    scope = options.graph_scope
    with ExitStack() as stack:

        def capture() -> tuple[GraphBank, ...]:
            banks = []
            for stage in stages:
                banks.append(capture_bank(parts_of(stage, scope), samples, made))
                stack.callback(banks[-1].reset)
            return tuple(banks)

        started = time.perf_counter()
        banks = refuse_together(capture)
        seconds = time.perf_counter() - started
        own = rank_record(banks, made, schedule.sizes, scope=scope, seconds=seconds)
        stage = options.parallel.layout.coordinate("pp", dist.get_rank())
        yield banks, graphs_record(own, stage)


def padding_batch(
    capacity: Capacity, group: ContextParallelGroup, needs: TokenNeeds, schedule: Schedule
) -> PackedBatch:
    """Return a microbatch of padding alone, which every layer accepts. Captures run on it."""
    rows, device = capacity.rows // group.size, needs.device
    nothing = torch.zeros(rows, dtype=torch.int64, device=device)
    shape = (1 + needs.depths, rows)
    batch = PackedBatch(
        packed=padding_pack(capacity),
        group=group,
        comm_type=needs.comm_type,
        partition=schedule.partition,
        positions=nothing,
        entries=nothing,
        real=nothing.bool(),
        tokens=nothing if needs.embeds else None,
        future=torch.full(shape, IGNORED, device=device) if needs.predicts else None,
        totals=Totals(0, (0,) * (1 + needs.depths)),
    )
    return with_metadata(batch, capacity)


def check_slots(options: TrainOptions, step: StepPlan) -> None:
    """Refuse a plan that has more microbatches in flight than there are slots.

    Raises:
        InputError: There are too few slots, unless microbatches without a slot are computed
            eagerly.
    """
    graphs, layout = options.graphs, options.parallel.layout
    if graphs.graphs != "bank" or graphs.graphs_overflow == "eager":
        return
    count = len(step.plan.microbatches)
    needed = microbatches_in_flight(count, pp=layout.pp, vpp=options.parallel.vpp)
    if needed > options.slots:
        problem = f"a plan of {count} microbatches has {needed} in flight, and {options.slots}"
        remedy = "raise it, or use --graphs-overflow eager"
        raise InputError("graph_slots", f"{problem} have a slot; {remedy}")


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


def rank_record(
    banks: Sequence[GraphBank],
    options: BankOptions,
    sizes: Sequence[int],
    *,
    scope: str,
    seconds: float,
) -> GraphsRecord:
    """Count the memory of this rank's banks by CP size, each static tensor once."""
    rows = options.shape[0] * options.shape[1] * options.dtype.itemsize
    memories = [bank.memory for bank in banks]
    parts = sum(len({(key.layer, key.slot) for key in memory}) for memory in memories)
    entries = sum(map(len, memories))
    return GraphsRecord(
        backend=options.backend.name,
        scope=scope,
        slots=options.slots,
        entries=entries,
        entries_of_rank=entries,
        capture_seconds=seconds,
        rank=dist.get_rank(),
        rows=parts * rows,
        memory={size: _of_size(memories, size, rows) for size in sizes},
    )


def _of_size(
    memories: Sequence[Mapping[GraphKey, GraphMemory]], size: int, rows: int
) -> SizeMemory:
    """Count the memory of one CP size.

    The inputs of an entry are the rows of its part and the tensors of the microbatch, which all
    parts share.
    """
    count = inputs = gradients = private = 0
    for memory in memories:
        entries = {key: held for key, held in memory.items() if key.cp_size == size}
        count += len(entries)
        inputs += sum({key.slot: held.inputs - rows for key, held in entries.items()}.values())
        gradients += sum(held.gradients for held in entries.values())
        private += sum(held.private for held in entries.values())
    return SizeMemory(entries=count, inputs=inputs, gradients=gradients, private=private)


def graphs_record(own: GraphsRecord, stage: int) -> GraphsRecord:
    """Make one record of those of all ranks, each with its pipeline rank. A collective."""
    found = gathered((stage, own))
    records = [record for _, record in found]
    return replace(
        max(records, key=lambda record: record.total),
        entries=sum(record.entries for record in records),
        entries_of_rank=max(record.entries for record in records),
        capture_seconds=max(record.capture_seconds for record in records),
        stage_bytes=tuple(
            max(record.total for place, record in found if place == one)
            for one in sorted({place for place, _ in found})
        ),
    )
