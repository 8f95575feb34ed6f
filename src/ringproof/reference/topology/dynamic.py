"""The process groups of Dynamic CP, of which a rank uses one in each microbatch of a plan.

All are created once. Each ``PackedBatch`` holds the group that it runs on, so no module has a
current group that could be stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import torch.distributed as dist

from ringproof.errors import InputError, shown
from ringproof.reference.topology.context import ParallelContext, created_groups
from ringproof.reference.topology.dynamic_catalogue import (
    DOMAIN,
    DOMAIN_AXES,
    aligned_group,
    all_dynamic_groups,
    check_group_sizes,
    rank_levels,
)

HIERARCHICAL = "a2a+p2p"
"""The one communication type that needs two groups."""

GroupsByRanks = dict[tuple[int, ...], dist.ProcessGroup]


@dataclass(frozen=True)
class ContextParallelGroup:
    """The ranks that share the sequences of one ``PackedBatch``.

    A group of size 1 is a process group, too.

    Args:
        flat: The group by which sequences are cut.
        levels: The all-to-all's group inside a node and the ring's across nodes; ``None`` where
            they were not asked for.
    """

    flat: dist.ProcessGroup
    levels: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return int(self.flat.size())

    @property
    def rank(self) -> int:
        """This rank's index in the group."""
        return int(self.flat.rank())

    def of_type(
        self, comm_type: str
    ) -> dist.ProcessGroup | tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """What a communication type runs on: the levels for ``a2a+p2p``, else the flat group.

        Raises:
            InputError: The levels were not made.
        """
        if comm_type != HIERARCHICAL:
            return self.flat
        if self.levels is None:
            problem = f"the group of {self.size} ranks has no levels for {shown(comm_type)}"
            raise InputError("comm_type", f"{problem}; make the groups for that type")
        return self.levels


@dataclass(frozen=True)
class DynamicGroups:
    """Every CP group of this rank's domain that holds this rank.

    Args:
        domain: The DP times CP ranks with this rank's place in the other axes, CP fastest.
        by_size: Size to the aligned group that holds this rank.
    """

    domain: dist.ProcessGroup
    by_size: Mapping[int, ContextParallelGroup]

    @property
    def domain_rank(self) -> int:
        """This rank's index in the domain. The ranks in a ``Plan`` are these indices."""
        return int(self.domain.rank())

    @property
    def domain_size(self) -> int:
        """Ranks in the domain."""
        return int(self.domain.size())

    def group(self, size: int) -> ContextParallelGroup:
        """The group of that size.

        Raises:
            InputError: It was not made.
        """
        if size not in self.by_size:
            sizes = ", ".join(map(str, self.by_size))
            raise InputError("cp_size", f"no group has {size} ranks; choose from {sizes}")
        return self.by_size[size]


@contextmanager
def dynamic_groups(
    context: ParallelContext,
    sizes: Sequence[int],
    *,
    comm_type: str,
    ranks_per_node: int,
    timeout: timedelta | None = None,
) -> Iterator[DynamicGroups]:
    """Create the groups of some sizes; destroy them after.

    A collective: every rank of the world enters and leaves it, with the same arguments. After an
    exception the groups are left to the end of the process (see ``parallel_context``). The
    context's own domain group is used where it has one.

    Args:
        context: The rank grid and what was made for it.
        sizes: Divisors of the domain's size.
        comm_type: ``a2a+p2p`` makes the levels, too.
        ranks_per_node: Ranks of the domain in one node, neighbours in the domain.
        timeout: Timeout of each collective; the backend's default when ``None``.

    Raises:
        InputError: A size that does not divide the domain, or no rank in a node. Raised before
            any group is created.
    """
    layout, per_node = context.layout, ranks_per_node if comm_type == HIERARCHICAL else None
    wanted = check_group_sizes(sizes, layout.dp * layout.cp)
    domain = layout.group(DOMAIN_AXES, context.rank)
    given: GroupsByRanks = {domain: context.groups[DOMAIN]} if DOMAIN in context.groups else {}
    planned = [
        group
        for group in all_dynamic_groups(layout, wanted, ranks_per_node=per_node)
        if not (given and group.description == DOMAIN)
    ]
    with created_groups(planned, timeout) as made:
        groups = {**given, **{one.ranks: group for one, group in made.items()}}
        yield _groups_of_rank(groups, domain, context.rank, wanted, per_node)


def _groups_of_rank(
    groups: GroupsByRanks,
    domain: tuple[int, ...],
    rank: int,
    sizes: tuple[int, ...],
    per_node: int | None,
) -> DynamicGroups:
    """What a rank holds, found by the ranks of each group."""
    place = domain.index(rank)
    by_size = {}
    for size in sizes:
        flat = groups[aligned_group(domain, size, place)]
        levels = None
        if per_node is not None:
            inner, outer = rank_levels(domain, size, place, per_node)
            levels = (groups[inner], groups[outer])
        by_size[size] = ContextParallelGroup(flat, levels)
    return DynamicGroups(groups[domain], MappingProxyType(by_size))
