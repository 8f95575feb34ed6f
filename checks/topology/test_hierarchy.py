"""Levels of a group, against worked tables and their defining properties."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.errors import InputError
from ringproof.reference.topology.catalogue import all_groups
from ringproof.reference.topology.hierarchy import level_groups
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
        assert {len(group) for group in groups} == {sizes[level]}


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


def test_a_rank_is_in_one_group_of_each_description() -> None:
    layout = RankLayout(tp=2, cp=4, dp=2, pp=2)
    everything = list(all_groups(layout, (2, 2)))
    for rank in range(layout.world_size):
        names = [group.description for group in everything if rank in group.ranks]
        assert len(names) == len(set(names)) == 11
