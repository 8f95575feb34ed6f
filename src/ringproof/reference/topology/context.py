"""The process groups of this rank, built once at the entry point and passed down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import torch.distributed as dist

from ringproof.errors import InputError
from ringproof.reference.topology.catalogue import (
    CONTEXT_PARALLEL,
    DESCRIPTIONS,
    PlannedGroup,
    all_groups,
    hierarchical_description,
)
from ringproof.reference.topology.hierarchy import check_sizes
from ringproof.reference.topology.layout import RankLayout


@dataclass(frozen=True)
class ParallelContext:
    """This rank's place in the layout and its process groups.

    Args:
        layout: The rank grid.
        rank: This rank's index in the world.
        hierarchical_sizes: Level sizes, inner to outer; empty without hierarchical CP.
        groups: ``group_desc`` to the process group that holds this rank.
    """

    layout: RankLayout
    rank: int
    hierarchical_sizes: tuple[int, ...]
    groups: Mapping[str, dist.ProcessGroup]

    @property
    def context_parallel_group(self) -> dist.ProcessGroup:
        """The flat CP group: the one by which sequences are cut."""
        return self.groups[CONTEXT_PARALLEL]

    @property
    def hierarchical_groups(self) -> tuple[dist.ProcessGroup, ...]:
        """The levels of the CP group, level 0 (all-to-all) first."""
        levels = range(len(self.hierarchical_sizes))
        return tuple(self.groups[hierarchical_description(level)] for level in levels)


@contextmanager
def parallel_context(
    layout: RankLayout,
    hierarchical_sizes: Sequence[int] = (),
    *,
    descriptions: Sequence[str] = tuple(DESCRIPTIONS),
    timeout: timedelta | None = None,
) -> Iterator[ParallelContext]:
    """Create the layout's process groups on an initialised default group; destroy them after.

    A collective: every rank of the world enters and leaves it, with the same arguments. After an
    exception the groups are left to the end of the process: the ranks no longer agree on where
    they are, and on NCCL destroying a group waits for its members.

    Args:
        layout: The rank grid; its size must be the world's.
        hierarchical_sizes: Level sizes inner to outer, or empty.
        descriptions: Groups of the catalogue to create.
        timeout: Timeout of each collective; the backend's default when ``None``.

    Raises:
        InputError: The layout does not fill the world, or the level sizes do not multiply to
            the CP size. Raised before any group is created.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if layout.world_size != world_size:
        problem = f"the layout has {layout.world_size} ranks, and {world_size} were started"
        raise InputError("layout", f"{problem}; make both equal")
    sizes = check_sizes(hierarchical_sizes, layout.cp) if hierarchical_sizes else ()
    if sizes and CONTEXT_PARALLEL not in descriptions:
        problem = f"levels divide the CP group, and {list(descriptions)} leave it out"
        raise InputError("descriptions", f"{problem}; include it")
    with created_groups(all_groups(layout, sizes, descriptions), timeout) as made:
        groups = {planned.description: group for planned, group in made.items()}
        yield ParallelContext(layout, rank, sizes, MappingProxyType(groups))


@contextmanager
def created_groups(
    planned: Iterable[PlannedGroup], timeout: timedelta | None
) -> Iterator[dict[PlannedGroup, dist.ProcessGroup]]:
    """Create groups, of which each rank gets those that hold it; destroy them after.

    A collective; see :func:`parallel_context`. Gloo connects the ranks while a group is created,
    and ``new_group`` returns when this rank's own connections are ready. The barrier keeps a fast
    rank from destroying its groups while others still connect.
    """
    made = {}
    for one in planned:
        ranks = list(one.ranks)
        group = dist.new_group(ranks, timeout=timeout, group_desc=one.description)
        if dist.get_rank() in ranks:
            made[one] = group
    if dist.get_backend() == "gloo":
        dist.barrier()
    yield made
    for group in made.values():
        dist.destroy_process_group(group)
