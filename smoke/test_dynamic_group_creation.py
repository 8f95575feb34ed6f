"""Dynamic groups as they really are: what exists, who is in it, and that attention runs on it.

What ``ringproof logs groups --dynamic`` says of what real ranks print of them is here, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ringproof.cluster import CaseOutcome, Cluster, RankContext
from ringproof.errors import InputError
from ringproof.reference.attention.attention import context_parallel_attention
from ringproof.reference.attention.dense import dense_attention
from ringproof.reference.packing.capacity import local_to_global
from ringproof.reference.packing.sequences import pack
from ringproof.reference.topology.catalogue import all_groups
from ringproof.reference.topology.census import print_census
from ringproof.reference.topology.context import ParallelContext, parallel_context
from ringproof.reference.topology.dynamic import DynamicGroups, dynamic_groups
from ringproof.reference.topology.dynamic_catalogue import (
    DOMAIN_AXES,
    aligned_group,
    all_dynamic_groups,
    rank_levels,
)
from ringproof.reference.topology.layout import RankLayout
from smoke.processes import log_verdict

LAYOUTS = [
    pytest.param(RankLayout(dp=8), (1, 2, 4, 8), 4, id="dp8"),
    pytest.param(RankLayout(tp=2, cp=2, dp=2), (1, 2, 4), 2, id="tp2-cp2-dp2"),
    pytest.param(RankLayout(tp=2, pp=2, dp=2), (1, 2), 1, id="tp2-pp2-dp2"),
    pytest.param(RankLayout(cp=6), (1, 2, 3, 6), 2, id="cp6-not-powers-of-two"),
    pytest.param(RankLayout(), (1,), 1, id="alone"),
]
EXACT = 1e-12


@contextmanager
def grouped(
    layout: RankLayout, sizes: Sequence[int], comm_type: str = "p2p", per_node: int = 8
) -> Iterator[tuple[ParallelContext, DynamicGroups]]:
    """The context and its dynamic groups."""
    with (
        parallel_context(layout) as context,
        dynamic_groups(context, sizes, comm_type=comm_type, ranks_per_node=per_node) as groups,
    ):
        yield context, groups


def list_groups(
    rank: RankContext, *, layout: RankLayout, sizes: Sequence[int], comm_type: str, per_node: int
) -> dict[str, Any]:
    """The census, and the members of each group as told by a collective over it."""
    with grouped(layout, sizes, comm_type, per_node) as (_, groups):
        lines = print_census(sys.stderr)
        members = {size: told(rank, groups.group(size).flat) for size in sizes}
        levels = {
            size: [told(rank, level) for level in groups.group(size).levels or ()] for size in sizes
        }
        return {
            "census": [(line.group, line.ranks) for line in lines],
            "domain": (groups.domain_rank, groups.domain_size, told(rank, groups.domain)),
            "members": members,
            "levels": levels,
            "places": {size: groups.group(size).rank for size in sizes},
        }


def told(rank: RankContext, group: dist.ProcessGroup) -> list[int]:
    """The ranks of a group, gathered over it."""
    own = torch.tensor([rank.rank], device=rank.device)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, own, group=group)
    return [int(part) for part in found]


def attend(
    rank: RankContext, *, sizes: Sequence[int], comm_type: str, per_node: int, swapped: bool = False
) -> dict[int, float]:
    """Largest difference to dense attention on each dynamic group, its own pack on every group."""
    found = {}
    with grouped(RankLayout(cp=rank.world_size), sizes, comm_type, per_node) as (_, groups):
        for size in sizes:
            group = groups.group(size)
            packed = pack([11, 40, 3], multiple=2 * size)
            generator = torch.Generator().manual_seed(groups.domain_rank // size)
            q, k, v = (
                torch.randn(packed.rows, 8, 4, generator=generator, dtype=torch.float64)
                for _ in range(3)
            )
            rows = torch.from_numpy(local_to_global(packed, size, group.rank, "zigzag"))
            on = group.of_type(comm_type)
            out, _ = context_parallel_attention(
                *(whole[rows].to(rank.device) for whole in (q, k, v)),
                comm_type=comm_type,
                group=on[::-1] if swapped else on,
                packed=packed,
            )
            expected = torch.zeros_like(q)
            for span in packed.real_spans:
                own = [whole[None, span.index] for whole in (q, k, v)]
                expected[span.index] = dense_attention(*own, own[0], causal=True).out[0]
            found[size] = float((out.cpu() - expected[rows]).abs().max())
    return found


def ask_for(rank: RankContext, *, sizes: Sequence[int], size: int) -> str:
    """What is said of the levels of a group of that size, where groups have none."""
    with grouped(RankLayout(cp=rank.world_size), sizes) as (_, groups):
        try:
            groups.group(size).of_type("a2a+p2p")
        except InputError as refusal:
            return str(refusal)
    return ""


def listed(
    cluster: Cluster, layout: RankLayout, sizes: tuple[int, ...], comm_type: str, per_node: int = 2
) -> CaseOutcome:
    options = {"layout": layout, "sizes": sizes, "comm_type": comm_type, "per_node": per_node}
    return cluster.run(list_groups, world_size=layout.world_size, **options)


@pytest.mark.parametrize("comm_type", ["p2p", "a2a+p2p"])
@pytest.mark.parametrize(("layout", "sizes", "per_node"), LAYOUTS)
def test_groups_are_those_of_the_catalogue(
    cluster: Cluster, layout: RankLayout, sizes: tuple[int, ...], per_node: int, comm_type: str
) -> None:
    outcome = listed(cluster, layout, sizes, comm_type, per_node)
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
        attend, world_size=world, sizes=sizes, comm_type=comm_type, per_node=per_node
    )
    for value in outcome.values:
        assert value.keys() == set(sizes)
        assert all(difference < EXACT for difference in value.values()), value


def test_levels_the_wrong_way_round_are_seen(cluster: Cluster) -> None:
    outcome = cluster.run(
        attend,
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
    outcome = cluster.run(ask_for, world_size=4, sizes=(1, 2), size=size)
    assert all(value.startswith(message) for value in outcome.values)


@pytest.mark.parametrize("comm_type", ["p2p", "a2a+p2p"])
def test_the_groups_of_the_trainer_are_as_expected(
    cluster: Cluster, tmp_path: Path, comm_type: str
) -> None:
    """Tensor parallel ranks apart, so that a domain is no run of the world's ranks."""
    log = listed(cluster, RankLayout(tp=2, cp=2, dp=2), (1, 2), comm_type).log_text()
    found = log_verdict(tmp_path, log, "--dynamic", "1,2,4")
    assert found.exit_code == 0, found.report["findings"]
    assert found.report["expected_dynamic_sizes"] == [1, 2, 4]
    found = log_verdict(tmp_path, log, "--dynamic", "1,4")
    assert found.exit_code == 1
    assert found.report["findings"] == [
        "there are dynamic groups of 2 ranks, which were not expected"
    ]


def test_static_groups_alone_are_not_what_was_expected(cluster: Cluster, tmp_path: Path) -> None:
    log = listed(cluster, RankLayout(cp=4), (4,), "p2p").log_text()
    found = log_verdict(tmp_path, log, "--dynamic", "1,2,4")
    assert found.exit_code == 1
    assert len(found.report["findings"]) == 2, "only the whole domain is there"
