"""What the graph banks of a run hold: counted on each rank, and brought together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from ringproof.reference.graphs.backend import GraphMemory
from ringproof.reference.graphs.bank import BankOptions, GraphBank
from ringproof.reference.graphs.key import GraphKey
from ringproof.reference.training.graph_records import GraphsRecord, SizeMemory


@dataclass(frozen=True, kw_only=True)
class RankHolding:
    """What one rank holds.

    Args:
        stage: Its place in the pipeline.
        entries: Of its banks.
        seconds: That their capture took.
        rows: Bytes of static rows, which CP sizes share.
        memory: The rest, by CP size.
    """

    stage: int
    entries: int
    seconds: float
    rows: int
    memory: Mapping[int, SizeMemory]

    @property
    def total(self) -> int:
        """Bytes."""
        return self.rows + sum(held.total for held in self.memory.values())


def holding_of(
    banks: Sequence[GraphBank],
    options: BankOptions,
    sizes: Sequence[int],
    *,
    stage: int,
    seconds: float,
) -> RankHolding:
    """Count what a rank's banks hold, each static tensor once.

    Args:
        banks: Of this rank.
        options: They were made with.
        sizes: CP sizes that were captured.
        stage: Place of this rank in the pipeline.
        seconds: That the capture took.
    """
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


def graphs_record(own: RankHolding, backend: str, scope: str, slots: int) -> GraphsRecord:
    """The record of all ranks. A collective over the world.

    Args:
        own: Of this rank.
        backend: What captured.
        scope: What a graph holds.
        slots: Of each stage.
    """
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


def _of_size(
    memories: Sequence[Mapping[GraphKey, GraphMemory]], size: int, rows: int
) -> SizeMemory:
    """An entry's inputs are its part's rows and the microbatch's tensors, which parts share."""
    count = inputs = gradients = private = 0
    for memory in memories:
        entries = {key: held for key, held in memory.items() if key.cp_size == size}
        count += len(entries)
        inputs += sum({key.slot: held.inputs - rows for key, held in entries.items()}.values())
        gradients += sum(held.gradients for held in entries.values())
        private += sum(held.private for held in entries.values())
    return SizeMemory(entries=count, inputs=inputs, gradients=gradients, private=private)
