"""Every process group of the running world, read from torch.distributed itself.

The census asks the process-group registry and not our own bookkeeping, so it tells what exists
whoever created it: this package, Megatron-LM, or anything else.
"""

from __future__ import annotations

import sys
from typing import TextIO

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_all_pg_configs

from ringproof.reference.topology.census_line import CensusLine, field_word


def census() -> tuple[CensusLine, ...]:
    """Every group of the world, each once, as this rank sees it. A collective.

    The groups that hold this rank carry its place; the others were learnt from their members.
    Sorted by description, then by ranks.
    """
    own = [
        (field_word(c["pg_desc"]), _backend(c["backend_config"]), tuple(c["ranks"]))
        for c in _get_all_pg_configs()
    ]
    gathered: list[list[tuple[str, str, tuple[int, ...]]]] = [[]] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    return tuple(_line(*group) for group in sorted({one for groups in gathered for one in groups}))


def print_census(stream: TextIO | None = None) -> tuple[CensusLine, ...]:
    """Print one marker line per group and return them all. A collective.

    Each rank prints the groups that hold it; rank 0 prints the world's, so that its log alone is
    enough. The lines are flushed before the collective's result is returned.
    """
    lines = census()
    output = stream or sys.stdout
    for line in lines:
        if line.place is not None or dist.get_rank() == 0:
            output.write(line.format() + "\n")
    output.flush()
    return lines


def _backend(config: str) -> str:
    """``gloo`` for ``cpu:gloo,cuda:gloo``; a mixed configuration stays as torch writes it."""
    backends = {part.rpartition(":")[2] for part in config.split(",")}
    return backends.pop() if len(backends) == 1 else config


def _line(name: str, backend: str, ranks: tuple[int, ...]) -> CensusLine:
    rank = dist.get_rank()
    return CensusLine(
        rank=rank,
        world_size=dist.get_world_size(),
        group=name,
        backend=backend,
        ranks=ranks,
        place=ranks.index(rank) if rank in ranks else None,
    )
