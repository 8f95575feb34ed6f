"""Real upstream as oracle: megatron-core 0.16.1 creates its groups; ours must be the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringproof.cluster import Cluster
from ringproof.reference.topology.catalogue import all_groups
from ringproof.reference.topology.layout import DEFAULT_ORDER, RankLayout
from smoke import cases

Groups = set[tuple[str, tuple[int, ...]]]

LAYOUTS = [
    pytest.param(RankLayout(cp=2), (2, 1), id="cp2-2x1"),
    pytest.param(RankLayout(cp=3), (1, 3), id="cp3-1x3"),
    pytest.param(RankLayout(cp=4), (2, 2), id="cp4-2x2"),
    pytest.param(RankLayout(cp=4), (), id="cp4-flat"),
    pytest.param(RankLayout(cp=6), (2, 3), id="cp6-2x3"),
    pytest.param(RankLayout(cp=6), (3, 2), id="cp6-3x2"),
    pytest.param(RankLayout(cp=8), (2, 4), id="cp8-2x4"),
    pytest.param(RankLayout(cp=8), (4, 2), id="cp8-4x2"),
    pytest.param(RankLayout(cp=8), (2, 2, 2), id="cp8-2x2x2"),
    pytest.param(RankLayout(tp=2, cp=4), (2, 2), id="tp2-cp4-2x2"),
    pytest.param(RankLayout(cp=4, pp=2), (2, 2), id="cp4-pp2-2x2"),
    pytest.param(RankLayout(cp=4, dp=2), (2, 2), id="cp4-dp2-2x2"),
    pytest.param(RankLayout(tp=2, cp=2, pp=2), (2, 1), id="tp2-cp2-pp2"),
    pytest.param(RankLayout(tp=2, cp=2, dp=2), (), id="tp2-cp2-dp2"),
    pytest.param(RankLayout(tp=2, dp=2, pp=2), (), id="tp2-dp2-pp2"),
    pytest.param(RankLayout(tp=2, cp=2, dp=2, order="tp-cp-ep-pp-dp"), (1, 2), id="dp-last"),
    pytest.param(RankLayout(tp=2, cp=4, order="cp-tp-ep-dp-pp"), (2, 2), id="cp-first"),
]


def upstream_groups(cluster: Cluster, layout: RankLayout, sizes: tuple[int, ...]) -> list[Groups]:
    """The census on every rank after upstream's own initialisation."""
    outcome = cluster.run(
        cases.upstream_groups,
        world_size=layout.world_size,
        sizes={"tp": layout.tp, "cp": layout.cp, "pp": layout.pp},
        order=layout.order,
        hierarchical_sizes=sizes,
    )
    return [set(value) for value in outcome.values]


def expected_groups(layout: RankLayout, sizes: tuple[int, ...]) -> Groups:
    """Ours, and those beyond our catalogue that follow from pipelines and the expert grid."""
    world = tuple(range(layout.world_size))
    groups = {(group.description, group.ranks) for group in all_groups(layout, sizes)}
    groups |= {("default_pg", world), ("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", world)}
    for stage_ranks in layout.groups(("pp",)):
        ends = tuple(sorted({stage_ranks[0], stage_ranks[-1]}))
        groups |= {("EMBEDDING_GROUP", ends), ("POSITION_EMBEDDING_GROUP", stage_ranks[:1])}
    experts = RankLayout(tp=layout.tp, dp=layout.dp * layout.cp, pp=layout.pp, order=layout.order)
    for description, axes in (
        ("EXPERT_MODEL_PARALLEL_GROUP", ("ep",)),
        ("EXPERT_TENSOR_PARALLEL_GROUP", ("tp",)),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", ("tp", "ep")),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", ("tp", "ep", "pp")),
        ("EXPERT_DATA_PARALLEL_GROUP", ("dp",)),
    ):
        groups |= {(description, ranks) for ranks in experts.groups(axes)}
    return groups


@pytest.mark.parametrize(("layout", "sizes"), LAYOUTS)
def test_groups_equal_topology(
    cluster: Cluster,
    layout: RankLayout,
    sizes: tuple[int, ...],
    record_property: Callable[[str, object], None],
) -> None:
    found = upstream_groups(cluster, layout, sizes)
    expected = expected_groups(layout, sizes)
    record_property("groups", len(expected))
    assert all(groups == expected for groups in found)


def test_census_finds_hierarchical_levels(cluster: Cluster) -> None:
    found = upstream_groups(cluster, RankLayout(cp=8), (2, 4))[0]
    levels = {level: set[tuple[int, ...]]() for level in (0, 1)}
    for name, ranks in found:
        for level, members in levels.items():
            if name == f"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L{level}":
                members.add(ranks)
    assert levels[0] == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert levels[1] == {(0, 2, 4, 6), (1, 3, 5, 7)}


def test_the_comparison_notices_another_layout(cluster: Cluster) -> None:
    """Negative control: swapped level sizes, and another order, are different groups."""
    found = upstream_groups(cluster, RankLayout(cp=8), (2, 4))[0]
    assert found != expected_groups(RankLayout(cp=8), (4, 2))
    found = upstream_groups(cluster, RankLayout(tp=2, cp=4), (2, 2))[0]
    assert found != expected_groups(RankLayout(tp=2, cp=4, order="cp-tp-ep-dp-pp"), (2, 2))
    assert DEFAULT_ORDER == "tp-cp-ep-dp-pp"
