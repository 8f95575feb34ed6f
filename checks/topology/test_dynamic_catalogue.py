"""Dynamic groups as integers: a worked table, their defining properties, bad sizes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.errors import InputError
from ringproof.reference.topology.catalogue import PlannedGroup
from ringproof.reference.topology.dynamic_catalogue import (
    DOMAIN_AXES,
    aligned_group,
    all_dynamic_groups,
    level_sizes,
    rank_levels,
)
from ringproof.reference.topology.layout import RankLayout

layouts = st.builds(
    RankLayout,
    tp=st.integers(1, 2),
    cp=st.integers(1, 6),
    dp=st.integers(1, 4),
    pp=st.integers(1, 2),
    order=st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "cp-tp-ep-dp-pp"]),
)


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def named(groups: list[PlannedGroup]) -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {}
    for group in groups:
        found.setdefault(group.description, []).append(group.ranks)
    return found


def test_worked_table() -> None:
    groups = all_dynamic_groups(RankLayout(cp=4, dp=2), (1, 2, 4, 8), ranks_per_node=4)
    assert named(list(groups)) == {
        "DATA_PARALLEL_GROUP_WITH_CP": [(0, 1, 2, 3, 4, 5, 6, 7)],
        "DYNAMIC_DP_CP_GROUP_1": [(rank,) for rank in range(8)],
        "DYNAMIC_DP_CP_GROUP_2": [(0, 1), (2, 3), (4, 5), (6, 7)],
        "DYNAMIC_DP_CP_GROUP_4": [(0, 1, 2, 3), (4, 5, 6, 7)],
        "HIERARCHICAL_DYNAMIC_DP_CP_GROUP_8_L1": [(0, 4), (1, 5), (2, 6), (3, 7)],
    }


def test_levels_that_are_no_group_yet_are_made_under_their_own_name() -> None:
    groups = all_dynamic_groups(RankLayout(tp=2, cp=6), (6,), ranks_per_node=2)
    assert named(list(groups)) == {
        "DATA_PARALLEL_GROUP_WITH_CP": [(0, 2, 4, 6, 8, 10), (1, 3, 5, 7, 9, 11)],
        "HIERARCHICAL_DYNAMIC_DP_CP_GROUP_6_L0": [(0, 2), (4, 6), (8, 10), (1, 3), (5, 7), (9, 11)],
        "HIERARCHICAL_DYNAMIC_DP_CP_GROUP_6_L1": [(0, 4, 8), (2, 6, 10), (1, 5, 9), (3, 7, 11)],
    }


@given(layouts, st.one_of(st.none(), st.integers(1, 8)))
def test_every_group_a_rank_asks_for_is_made_once(layout: RankLayout, per_node: int | None) -> None:
    sizes = divisors(layout.dp * layout.cp)
    made = list(all_dynamic_groups(layout, sizes, ranks_per_node=per_node))
    ranks = [group.ranks for group in made]
    assert len(set(ranks)) == len(ranks)
    wanted = set()
    for rank in range(layout.world_size):
        domain = layout.group(DOMAIN_AXES, rank)
        place = domain.index(rank)
        for size in sizes:
            wanted.add(aligned_group(domain, size, place))
            if per_node is not None:
                wanted.update(rank_levels(domain, size, place, per_node))
    assert set(ranks) == wanted


@given(layouts)
def test_a_size_partitions_the_domain_at_aligned_offsets(layout: RankLayout) -> None:
    domain = layout.group(DOMAIN_AXES, 0)
    for size in divisors(len(domain)):
        groups = [aligned_group(domain, size, place) for place in range(len(domain))]
        assert list(itertools.chain(*groups[::size])) == list(domain)
        assert all(rank in group for rank, group in zip(domain, groups, strict=True))


@given(st.integers(1, 24), st.integers(1, 12))
def test_levels_make_up_the_group_and_the_inner_leaves_no_node(ranks: int, per_node: int) -> None:
    for size in divisors(ranks):
        inner_size, outer_size = level_sizes(size, per_node)
        for place in range(ranks):
            inner, outer = rank_levels(range(ranks), size, place, per_node)
            group = aligned_group(range(ranks), size, place)
            assert len({rank // per_node for rank in inner}) == 1
            # As context_parallel_attention wants them: flat rank = outer * size(inner) + inner.
            index = outer.index(place) * inner_size + inner.index(place)
            assert group[index] == place
            assert len(outer) == outer_size


@pytest.mark.parametrize(
    ("sizes", "per_node", "message"),
    [
        ((), None, "cp_sizes: no group size is given"),
        ((1, 3), None, "cp_sizes: 3 does not divide the domain of 8 ranks"),
        ((0,), None, "cp_sizes: 0 does not divide"),
        ((16,), None, "cp_sizes: 16 does not divide"),
        ((2,), 0, "ranks_per_node: 0 is less than 1"),
    ],
)
def test_bad_sizes_are_refused(sizes: tuple[int, ...], per_node: int | None, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        list(all_dynamic_groups(RankLayout(cp=8), sizes, ranks_per_node=per_node))
    assert str(refusal.value).startswith(message)
