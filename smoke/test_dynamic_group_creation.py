"""Dynamic groups as they really are: what exists, who is in it, and that attention runs on it."""

from __future__ import annotations

from typing import Any

import pytest

from ringproof.cluster import Cluster
from ringproof.reference.topology.catalogue import all_groups
from ringproof.reference.topology.dynamic_catalogue import (
    DOMAIN_AXES,
    aligned_group,
    all_dynamic_groups,
    rank_levels,
)
from ringproof.reference.topology.layout import RankLayout
from smoke import routing_cases

LAYOUTS = [
    pytest.param(RankLayout(dp=8), (1, 2, 4, 8), 4, id="dp8"),
    pytest.param(RankLayout(tp=2, cp=2, dp=2), (1, 2, 4), 2, id="tp2-cp2-dp2"),
    pytest.param(RankLayout(tp=2, pp=2, dp=2), (1, 2), 1, id="tp2-pp2-dp2"),
    pytest.param(RankLayout(cp=6), (1, 2, 3, 6), 2, id="cp6-not-powers-of-two"),
    pytest.param(RankLayout(), (1,), 1, id="alone"),
]
EXACT = 1e-12


@pytest.mark.parametrize("comm_type", ["p2p", "a2a+p2p"])
@pytest.mark.parametrize(("layout", "sizes", "per_node"), LAYOUTS)
def test_groups_are_those_of_the_catalogue(
    cluster: Cluster, layout: RankLayout, sizes: tuple[int, ...], per_node: int, comm_type: str
) -> None:
    outcome = cluster.run(
        routing_cases.list_groups,
        world_size=layout.world_size,
        layout=layout,
        sizes=sizes,
        comm_type=comm_type,
        per_node=per_node,
    )
    levelled = per_node if comm_type == "a2a+p2p" else None
    dynamic = all_dynamic_groups(layout, sizes, ranks_per_node=levelled)
    expected = {(group.description, group.ranks) for group in (*all_groups(layout), *dynamic)}
    expected.add(("default_pg", tuple(range(layout.world_size))))
    for rank, value in enumerate(outcome.values):
        assert set(value["census"]) == expected
        assert len(value["census"]) == len(expected)
        check_rank(value, layout, rank, sizes, levelled)
    assert "group=DYNAMIC_DP_CP_GROUP_1" in outcome.log_text() or layout.world_size == 1


def check_rank(
    value: dict[str, Any],
    layout: RankLayout,
    rank: int,
    sizes: tuple[int, ...],
    per_node: int | None,
) -> None:
    """What collectives over a rank's groups told of their members."""
    domain = layout.group(DOMAIN_AXES, rank)
    place = domain.index(rank)
    assert value["domain"] == (place, len(domain), list(domain))
    for size in sizes:
        assert tuple(value["members"][size]) == aligned_group(domain, size, place)
        assert value["places"][size] == place % size
        levels = rank_levels(domain, size, place, per_node) if per_node else ()
        assert [tuple(members) for members in value["levels"][size]] == list(levels)


@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a", "a2a+p2p"])
@pytest.mark.parametrize(("world", "sizes", "per_node"), [(4, (1, 2, 4), 2), (8, (2, 8, 4), 4)])
def test_attention_is_exact_on_every_group(
    cluster: Cluster, world: int, sizes: tuple[int, ...], per_node: int, comm_type: str
) -> None:
    """Several groups at once, each on a pack of its own."""
    outcome = cluster.run(
        routing_cases.attend, world_size=world, sizes=sizes, comm_type=comm_type, per_node=per_node
    )
    for value in outcome.values:
        assert value.keys() == set(sizes)
        assert all(difference < EXACT for difference in value.values()), value


def test_levels_the_wrong_way_round_are_seen(cluster: Cluster) -> None:
    outcome = cluster.run(
        routing_cases.attend,
        world_size=8,
        sizes=(8,),
        comm_type="a2a+p2p",
        per_node=2,
        swapped=True,
    )
    assert max(value[8] for value in outcome.values) > 1e-3


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (4, "cp_size: no group has 4 ranks; choose from 1, 2"),
        (2, "comm_type: the group of 2 ranks has no levels for 'a2a+p2p'; make"),
    ],
)
def test_what_was_not_made_is_refused(cluster: Cluster, size: int, message: str) -> None:
    outcome = cluster.run(routing_cases.ask_for, world_size=4, sizes=(1, 2), size=size)
    assert all(value.startswith(message) for value in outcome.values)
