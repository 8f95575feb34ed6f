"""Levels of a group, against worked tables and their defining properties."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.errors import InputError
from ringproof.reference.topology.catalogue import all_groups, rank_groups
from ringproof.reference.topology.hierarchy import level_group, level_groups
from ringproof.reference.topology.layout import RankLayout

TABLES = [
    ((2, 4), 0, [(0, 1), (2, 3), (4, 5), (6, 7)]),
    ((2, 4), 1, [(0, 2, 4, 6), (1, 3, 5, 7)]),
    ((4, 2), 0, [(0, 1, 2, 3), (4, 5, 6, 7)]),
    ((4, 2), 1, [(0, 4), (1, 5), (2, 6), (3, 7)]),
    ((2, 2, 2), 1, [(0, 2), (1, 3), (4, 6), (5, 7)]),
    ((2, 2, 2), 2, [(0, 4), (1, 5), (2, 6), (3, 7)]),
    ((1, 8), 0, [(0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)]),
    ((8,), 0, [(0, 1, 2, 3, 4, 5, 6, 7)]),
    ((8, 1), 0, [(0, 1, 2, 3, 4, 5, 6, 7)]),
]
level_sizes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize(("sizes", "level", "groups"), TABLES)
def test_worked_table(sizes: tuple[int, ...], level: int, groups: list[tuple[int, ...]]) -> None:
    assert list(level_groups(range(8), sizes, level=level)) == groups


@given(level_sizes)
def test_each_level_partitions_the_group(sizes: tuple[int, ...]) -> None:
    members = range(100, 100 + math.prod(sizes))
    for level in range(len(sizes)):
        groups = list(level_groups(members, sizes, level=level))
        assert sorted(itertools.chain(*groups)) == list(members)
        for group in groups:
            assert len(group) == sizes[level]
            for rank in group:
                found = level_group(members, sizes, level=level, position=rank - 100)
                assert found == group


@given(level_sizes)
def test_level_zero_holds_consecutive_members(sizes: tuple[int, ...]) -> None:
    for group in level_groups(range(math.prod(sizes)), sizes, level=0):
        assert group == tuple(range(group[0], group[0] + sizes[0]))


@given(level_sizes)
def test_two_members_share_at_most_one_level(sizes: tuple[int, ...]) -> None:
    seen: set[tuple[int, int]] = set()
    for level in range(len(sizes)):
        for group in level_groups(range(math.prod(sizes)), sizes, level=level):
            pairs = set(itertools.combinations(group, 2))
            assert not pairs & seen
            seen |= pairs


@pytest.mark.parametrize("sizes", [(2, 3), (), (0, 4), (-2, -2), (2,)])
def test_product_must_match(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="hierarchical_context_parallel_sizes"):
        list(level_groups(range(4), sizes, level=0))


def test_a_rank_finds_its_groups_among_all() -> None:
    layout = RankLayout(tp=2, cp=4, dp=2, pp=2)
    everything = list(all_groups(layout, (2, 2)))
    for rank in range(layout.world_size):
        mine = {(g.description, g.ranks) for g in rank_groups(layout, rank, (2, 2))}
        assert mine == {(g.description, g.ranks) for g in everything if rank in g.ranks}
        assert len(mine) == 11


def test_levels_of_a_large_world_are_cheap() -> None:
    layout = RankLayout(tp=8, cp=50, dp=25, pp=10)
    groups = {g.description: g.ranks for g in rank_groups(layout, 54_321, (5, 10))}
    assert len(groups["HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0"]) == 5
    assert len(groups["HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1"]) == 10
    assert all(54_321 in ranks for ranks in groups.values())
