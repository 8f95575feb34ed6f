"""Graph banks of a run: one for each stage of this rank, captured before the first step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import CaptureBackend, GraphMemory
from ringproof.reference.graphs.bank import BankOptions, GraphBank, GraphKey, capture_bank
from ringproof.reference.graphs.estimate import check_fits, estimated_bytes, need_of
from ringproof.reference.graphs.scopes import Part, parts_of
from ringproof.reference.model.batch import IGNORED, PackedBatch, Totals
from ringproof.reference.model.stage import Stage
from ringproof.reference.model.static import with_metadata
from ringproof.reference.packing.capacity import padding_pack
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.dynamic import ContextParallelGroup, DynamicGroups
from ringproof.reference.training.agreement import refuse_together, world
from ringproof.reference.training.options import TrainOptions, microbatches_in_flight
from ringproof.reference.training.records import GraphsRecord, SizeMemory
from ringproof.reference.training.routing import TokenNeeds
from ringproof.reference.training.schedules import Schedule, StepPlan


@dataclass(frozen=True)
class CapturedBanks:
    """One bank for each stage of this rank, and the record of all ranks; empty without graphs."""

    banks: tuple[GraphBank, ...] = ()
    record: GraphsRecord | None = None


@contextmanager
def graph_banks(
    options: TrainOptions,
    schedule: Schedule,
    stages: Sequence[Stage],
    groups: DynamicGroups,
    needs: TokenNeeds,
    *,
    backend: CaptureBackend | None,
) -> Iterator[CapturedBanks]:
    """Capture every CP size for each stage of this rank, and free all graphs on exit.

    A collective over the world. If one rank cannot capture, all ranks raise, so that no pipeline
    stage waits for it. Without ``--graphs bank`` nothing is captured, and no backend is needed.

    Raises:
        InputError: A part cannot be captured, or the graphs do not fit in the memory that is free.
    """
    if options.graphs.graphs != "bank":
        yield CapturedBanks()
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
    scope = options.graphs.graph_scope
    with ExitStack() as stack:
        banks, seconds = _captured(stages, scope, samples, made, stack)
        stage = options.parallel.layout.coordinate("pp", dist.get_rank())
        own = holding_of(banks, made, schedule.sizes, stage=stage, seconds=seconds)
        yield CapturedBanks(banks, graphs_record(own, made.backend.name, scope, made.slots))


def _captured(
    stages: Sequence[Stage],
    scope: str,
    samples: Sequence[PackedBatch],
    options: BankOptions,
    stack: ExitStack,
) -> tuple[tuple[GraphBank, ...], float]:
    """Capture a bank for each stage if the graphs fit in memory. Return the duration, too."""

    def parts() -> list[tuple[Part, ...]]:
        return [parts_of(stage, scope) for stage in stages]

    def estimate() -> int:
        count = len(samples)
        return sum(estimated_bytes(part, samples[-1], count, options) for part in parts())

    def capture() -> tuple[GraphBank, ...]:
        banks = []
        for part in parts():
            banks.append(capture_bank(part, samples, options))
            stack.callback(banks[-1].reset)
        return tuple(banks)

    needed = refuse_together(estimate, world(), device=options.device)
    check_fits(need_of(needed, options.device), samples[-1].rows)
    started = time.perf_counter()
    banks = refuse_together(capture, world(), device=options.device)
    return banks, time.perf_counter() - started


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
        sequences=nothing,
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
        problem = f"a plan of {count} microbatches has {needed} in flight"
        remedy = "raise it, or use --graphs-overflow eager"
        raise InputError("graph_slots", options.slots, problem, remedy)


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


@dataclass(frozen=True, kw_only=True)
class RankHolding:
    """Memory of the graph banks of one rank.

    Args:
        stage: Pipeline rank.
        entries: Number of entries in its banks.
        seconds: Duration of their capture.
        rows: Bytes of the static rows, which all CP sizes share.
        memory: All other memory, by CP size.
    """

    stage: int
    entries: int
    seconds: float
    rows: int
    memory: Mapping[int, SizeMemory]

    @property
    def total(self) -> int:
        """Sum of all bytes."""
        return self.rows + sum(held.total for held in self.memory.values())


def holding_of(
    banks: Sequence[GraphBank],
    options: BankOptions,
    sizes: Sequence[int],
    *,
    stage: int,
    seconds: float,
) -> RankHolding:
    """Count the memory of a rank's banks by CP size, each static tensor once."""
    rows = options.shape[0] * options.shape[1] * options.dtype.itemsize
    memories = [bank.memory for bank in banks]
    parts = sum(len({(key.layer, key.slot) for key in memory}) for memory in memories)
    return RankHolding(
        stage=stage,
        entries=sum(map(len, memories)),
        seconds=seconds,
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


def graphs_record(own: RankHolding, backend: str, scope: str, slots: int) -> GraphsRecord:
    """Collect the record of all ranks. A collective over the world."""
    found: list[RankHolding] = [own] * dist.get_world_size()
    dist.all_gather_object(found, own)
    rank = max(range(len(found)), key=lambda one: found[one].total)
    stages = sorted({holding.stage for holding in found})
    return GraphsRecord(
        backend=backend,
        scope=scope,
        slots=slots,
        entries=sum(holding.entries for holding in found),
        entries_of_rank=max(holding.entries for holding in found),
        capture_seconds=max(holding.seconds for holding in found),
        rank=rank,
        rows=found[rank].rows,
        memory=found[rank].memory,
        stage_bytes=tuple(
            max(holding.total for holding in found if holding.stage == stage) for stage in stages
        ),
    )
