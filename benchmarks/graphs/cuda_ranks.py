"""The same layer over ranks: every CP size in one bank, and what sharing its pool saves."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from benchmarks.graphs.cuda_device import compare
from benchmarks.graphs.cuda_layer import Layer, ratios, ways
from ringproof.cluster import Cluster, ClusterOptions, RankContext, drop
from ringproof.reference.graphs.backend import GraphMemory
from ringproof.reference.graphs.bank import GraphBank
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.stage import Stage
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import ContextParallelGroup, dynamic_groups
from ringproof.reference.topology.layout import RankLayout

SECONDS = 900.0


def measure_ranks(
    layer: Layer, backend: str, device: str, *, ranks: int, rounds: int
) -> dict[str, Any]:
    """Times of every CP size, and bytes of its entry, on rank 0 of so many.

    Where ranks share a GPU, times say nothing: processes take turns on it.
    """
    nccl = device == "cuda"
    options = ClusterOptions(
        backend="nccl" if nccl else "gloo",
        timeout_seconds=SECONDS,
        log_sink=drop,
        share_gpus=nccl,
    )
    with Cluster(ranks, options) as cluster:
        outcome = cluster.run(on_rank, layer=layer, backend=backend, rounds=rounds)
    shared = nccl and ranks > torch.cuda.device_count()
    found: dict[str, Any] = outcome.values[0]
    return {**asdict(layer), "backend": backend, "ranks": ranks, "share a GPU": shared, **found}


def on_rank(rank: RankContext, *, layer: Layer, backend: str, rounds: int) -> dict[str, Any]:
    """The case."""
    sizes = [size for size in range(rank.world_size, 0, -1) if rank.world_size % size == 0]
    with (
        parallel_context(RankLayout(cp=rank.world_size)) as context,
        dynamic_groups(context, sizes, comm_type="p2p", ranks_per_node=1) as groups,
    ):
        _alone(layer, groups.group(1), backend, rank.device)  # it pays for what then stays
        apart = [_alone(layer, groups.group(size), backend, rank.device) for size in sizes]
        stage = layer.stage(rank.device)
        batches = [layer.batch(groups.group(size), rank.device) for size in sizes]
        bank = layer.bank(stage, [batch.group for batch in batches], backend, rank.device)
        try:
            times = {
                batch.group.size: _times(layer, stage, bank, batch, rounds) for batch in batches
            }
            memory = {key.cp_size: held for key, held in bank.memory.items()}
        finally:
            bank.reset()  # before the groups go, whose communicators the graphs hold
    return {
        "sizes": [
            {
                "cp size": size,
                "milliseconds": times[size],
                **ratios(times[size]),
                "memory": asdict(memory[size]),
            }
            for size in sizes
        ],
        "private bytes": {
            "all sizes in one pool": _private(memory.values()),
            "each in its own": sum(apart),
        },
    }


def _times(
    layer: Layer, stage: Stage, bank: GraphBank, batch: PackedBatch, rounds: int
) -> dict[str, Any]:
    runs = ways(layer, stage, batch, bank.enter(batch))
    for run in runs.values():
        run()
    return compare(runs, batch.positions.device, rounds)


def _alone(layer: Layer, group: ContextParallelGroup, backend: str, device: torch.device) -> int:
    """Bytes that one size takes in a pool of its own."""
    bank = layer.bank(layer.stage(device), [group], backend, device)
    found = _private(bank.memory.values())
    bank.reset()
    return found


def _private(memory: Any) -> int:
    held: list[GraphMemory] = list(memory)
    return sum(one.private for one in held)
