"""The process groups of a layout, under upstream's names, as integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.reference.topology.hierarchy import level_groups
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
            levels = hierarchical_sizes if description == CONTEXT_PARALLEL else ()
            yield from (
                PlannedGroup(hierarchical_description(level), members)
                for level in range(len(levels))
                for members in level_groups(ranks, levels, level=level)
            )
