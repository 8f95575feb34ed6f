"""Memory of the graph banks, counted on each rank and collected from all ranks."""

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
    """Count the memory of a rank's banks, each static tensor once.

    Args:
        banks: Graph banks of this rank.
        options: Options with which they were built.
        sizes: CP sizes that were captured.
        stage: Pipeline rank of this rank.
        seconds: Duration of the capture.
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
    """Collect the record of all ranks. A collective over the world.

    Args:
        own: Memory of this rank.
        backend: Name of the capture backend.
        scope: Part of the model that one graph captures.
        slots: Number of slots of each stage.
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
