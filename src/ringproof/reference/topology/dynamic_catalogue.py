"""The groups of Dynamic CP, as integers.

The ranks of data times context parallelism with the same place in every other axis are a domain.
A group of size ``d`` exists at each multiple of ``d`` in it. Worked table, a domain of 8 ranks:

    size 1   {0} {1} {2} {3} {4} {5} {6} {7}
    size 2   {0,1} {2,3} {4,5} {6,7}
    size 4   {0,1,2,3} {4,5,6,7}
    size 8   the domain itself

Any divisor of the domain is a size; upstream makes powers of two. A group that spans nodes has two
levels of its own: level 0 never leaves a node, level 1 joins the same places of its parts. With 4
ranks of the domain in a node, the group of size 8 has

    level 0   {0,1,2,3} {4,5,6,7}
    level 1   {0,4} {1,5} {2,6} {3,7}

No second group is created for ranks that already form a group, whatever its name is.

Source: ``create_dynamic_dp_cp_groups`` and ``get_dynamic_data_context_parallel_groups`` of
Megatron-LM's dev branch, whose names are used; it has no levels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ringproof.errors import InputError
from ringproof.reference.topology.catalogue import PlannedGroup
from ringproof.reference.topology.hierarchy import level_groups
from ringproof.reference.topology.layout import RankLayout

DOMAIN = "DATA_PARALLEL_GROUP_WITH_CP"
DOMAIN_AXES = ("dp", "cp")


def dynamic_description(size: int) -> str:
    """Upstream's ``group_desc`` of a dynamic group; the whole domain is :data:`DOMAIN`."""
    return f"DYNAMIC_DP_CP_GROUP_{size}"


def dynamic_level_description(size: int, level: int) -> str:
    """The ``group_desc`` of one level of a dynamic group; the name is ours."""
    return f"HIERARCHICAL_{dynamic_description(size)}_L{level}"


def check_group_sizes(sizes: Sequence[int], domain_size: int) -> tuple[int, ...]:
    """The sizes ascending, each once.

    Raises:
        InputError: None is given, or one does not divide the domain.
    """
    if not sizes:
        raise InputError("cp_sizes", "no group size is given; give at least one")
    for size in sizes:
        if size < 1 or domain_size % size:
            problem = f"{size} does not divide the domain of {domain_size} ranks"
            raise InputError("cp_sizes", f"{problem}; give a divisor")
    return tuple(sorted(set(sizes)))


def level_sizes(size: int, ranks_per_node: int) -> tuple[int, int]:
    """Sizes of the levels of an aligned group: inside a node, and across nodes.

    The inner one is the largest that leaves no node wherever the group lies.

    Args:
        size: Ranks of the group.
        ranks_per_node: Ranks of the domain in one node, neighbours in the domain.

    Raises:
        InputError: No rank in a node.

    >>> level_sizes(2, 4), level_sizes(8, 4), level_sizes(6, 4)
    ((2, 1), (4, 2), (2, 3))
    """
    if ranks_per_node < 1:
        raise InputError("ranks_per_node", f"{ranks_per_node} is less than 1; give 1 or more")
    inner = math.gcd(size, ranks_per_node)
    return inner, size // inner


def aligned_group(domain: Sequence[int], size: int, place: int) -> tuple[int, ...]:
    """The group of ``size`` that holds ``domain[place]``.

    >>> aligned_group(range(0, 16, 2), 4, 5)
    (8, 10, 12, 14)
    """
    first = place - place % size
    return tuple(domain[first : first + size])


def rank_levels(
    domain: Sequence[int], size: int, place: int, ranks_per_node: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The levels, 0 then 1, of the group of ``size`` that hold ``domain[place]``."""
    members = aligned_group(domain, size, place)
    sizes = level_sizes(size, ranks_per_node)
    inner, outer = (
        next(group for group in level_groups(members, sizes, level=level) if domain[place] in group)
        for level in (0, 1)
    )
    return inner, outer


def all_dynamic_groups(
    layout: RankLayout, sizes: Sequence[int], *, ranks_per_node: int | None
) -> Iterator[PlannedGroup]:
    """Every group of the world in creation order: the same on all ranks, as creation demands.

    Args:
        sizes: Sizes of the groups, besides the domain.
        ranks_per_node: See :func:`level_sizes`; ``None`` makes no levels.

    Raises:
        InputError: See :func:`check_group_sizes` and :func:`level_sizes`.
    """
    wanted = check_group_sizes(sizes, layout.dp * layout.cp)
    for domain in layout.groups(DOMAIN_AXES):
        planned = set()
        for group in _domain_groups(domain, wanted, ranks_per_node):
            if group.ranks not in planned:
                planned.add(group.ranks)
                yield group


def _domain_groups(
    domain: tuple[int, ...], sizes: tuple[int, ...], ranks_per_node: int | None
) -> Iterator[PlannedGroup]:
    """The groups of one domain, the same ranks under several names where they serve twice."""
    yield PlannedGroup(DOMAIN, domain)
    for size in sizes:
        for first in range(0, len(domain), size):
            ranks = aligned_group(domain, size, first)
            yield PlannedGroup(dynamic_description(size), ranks)
    if ranks_per_node is not None:
        for size in sizes:
            yield from _level_groups(domain, size, ranks_per_node)


def _level_groups(
    domain: tuple[int, ...], size: int, ranks_per_node: int
) -> Iterator[PlannedGroup]:
    nested = level_sizes(size, ranks_per_node)
    for first in range(0, len(domain), size):
        members = aligned_group(domain, size, first)
        for level in (0, 1):
            for ranks in level_groups(members, nested, level=level):
                yield PlannedGroup(dynamic_level_description(size, level), ranks)
