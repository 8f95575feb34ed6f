"""The process groups of a layout, under upstream's names, as integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.reference.topology.hierarchy import check_sizes, level_group, level_groups
from ringproof.reference.topology.layout import RankLayout

# ``group_desc`` strings of Megatron-LM's ``initialize_model_parallel`` (core_v0.16.1).
DESCRIPTIONS = MappingProxyType(
    {
        "DATA_PARALLEL_GROUP_WITH_CP": ("dp", "cp"),
        "DATA_PARALLEL_GROUP": ("dp",),
        "CONTEXT_PARALLEL_GROUP": ("cp",),
        "MODEL_PARALLEL_GROUP": ("tp", "pp"),
        "TENSOR_MODEL_PARALLEL_GROUP": ("tp",),
        "PIPELINE_MODEL_PARALLEL_GROUP": ("pp",),
        "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": ("tp", "dp", "cp"),
        "TENSOR_AND_DATA_PARALLEL_GROUP": ("tp", "dp"),
        "TENSOR_AND_CONTEXT_PARALLEL_GROUP": ("tp", "cp"),
    }
)
CONTEXT_PARALLEL = "CONTEXT_PARALLEL_GROUP"


def hierarchical_description(level: int) -> str:
    """Upstream's ``group_desc`` of one level of the hierarchical context parallel group."""
    return f"HIERARCHICAL_{CONTEXT_PARALLEL}_L{level}"


@dataclass(frozen=True)
class PlannedGroup:
    """One process group to be created.

    Args:
        description: Its ``group_desc``.
        ranks: Its global ranks, in group order.
    """

    description: str
    ranks: tuple[int, ...]


def all_groups(
    layout: RankLayout,
    hierarchical_sizes: Sequence[int] = (),
    descriptions: Sequence[str] = tuple(DESCRIPTIONS),
) -> Iterator[PlannedGroup]:
    """Every group of the world in creation order: the same on all ranks, as creation demands.

    The levels follow the context parallel group that they cut, as upstream creates them.

    Raises:
        InputError: The level sizes do not multiply to the context parallel size.
    """
    for description in descriptions:
        for ranks in layout.groups(DESCRIPTIONS[description]):
            yield PlannedGroup(description, ranks)
            if description == CONTEXT_PARALLEL and hierarchical_sizes:
                yield from _levels(ranks, hierarchical_sizes)


def rank_groups(
    layout: RankLayout,
    rank: int,
    hierarchical_sizes: Sequence[int] = (),
    descriptions: Sequence[str] = tuple(DESCRIPTIONS),
) -> tuple[PlannedGroup, ...]:
    """The groups that hold ``rank``, at the cost of their members however large the world.

    Raises:
        InputError: The level sizes do not multiply to the context parallel size, or the rank is
            outside the world.
    """
    found = [PlannedGroup(name, layout.group(DESCRIPTIONS[name], rank)) for name in descriptions]
    if hierarchical_sizes and CONTEXT_PARALLEL in descriptions:
        members = layout.group(("cp",), rank)
        for level in range(len(hierarchical_sizes)):
            ranks = level_group(
                members, hierarchical_sizes, level=level, position=members.index(rank)
            )
            found.append(PlannedGroup(hierarchical_description(level), ranks))
    return tuple(found)


def _levels(members: tuple[int, ...], sizes: Sequence[int]) -> Iterator[PlannedGroup]:
    for level in range(len(check_sizes(sizes, len(members)))):
        for ranks in level_groups(members, sizes, level=level):
            yield PlannedGroup(hierarchical_description(level), ranks)
