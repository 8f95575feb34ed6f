"""What the ranks run in the tests of shared GPUs: every kind of communication, on any device."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ringproof.harness.cluster import RankContext
from ringproof.reference.attention.communicator import Communicator, wait


def place(rank: RankContext) -> tuple[str, str, str | None]:
    """Backend, device, and the host that NCCL believes this rank to be on."""
    dist.barrier()
    return rank.backend, str(rank.device), os.environ.get("NCCL_HOSTID")


def communicate(rank: RankContext) -> dict[str, bool]:
    """Whether each operation that the reference uses gives what it should."""
    world, size = Communicator(dist.group.WORLD), rank.world_size
    own = torch.full((size, 3), float(rank.rank + 1), dtype=torch.float64, device=rank.device)
    ranks = torch.arange(1, size + 1, dtype=torch.float64, device=rank.device)
    summed = own.clone()
    dist.all_reduce(summed)
    arrived = torch.empty_like(own)
    wait(world.shift(own, arrived, tag=1))
    gathered = own.new_empty(size, own.numel())
    wait(world.start_all_gather(own, gathered))
    objects: list[int | None] = [None] * size
    dist.all_gather_object(objects, rank.rank)
    scattered = world.reduce_scatter(own * ranks[:, None])
    return {
        "all_reduce": bool((summed == ranks.sum()).all()),
        "ring": bool((arrived == (rank.rank - 1) % size + 1).all()),
        "all_gather": torch.equal(gathered, ranks[:, None].expand_as(gathered)),
        "reduce_scatter": bool((scattered == ranks.sum() * (rank.rank + 1)).all()),
        "objects": objects == list(range(size)),
    }


def on_one_host(rank: RankContext) -> None:
    """The same, but for NCCL all ranks are on one host: it has not started yet."""
    os.environ["NCCL_HOSTID"] = "one-host"
    communicate(rank)
