"""The rank grid, against its definition and at sizes that cannot be listed."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringproof.errors import InputError
from ringproof.reference.topology.layout import RankLayout

sizes = st.integers(1, 4)
orders = st.permutations(["tp", "cp", "ep", "dp", "pp"]).map("-".join)


def layouts() -> st.SearchStrategy[RankLayout]:
    return st.builds(RankLayout, tp=sizes, cp=sizes, dp=sizes, pp=sizes, order=orders)


@given(layouts())
def test_rank_is_the_sum_of_its_coordinates(layout: RankLayout) -> None:
    for rank in range(layout.world_size):
        parts = [layout.coordinate(a, rank) * layout.stride(a) for a in ("tp", "cp", "dp", "pp")]
        assert sum(parts) == rank


@given(
    layouts(), st.sampled_from([("tp",), ("cp",), ("dp", "cp"), ("tp", "pp"), ("tp", "dp", "cp")])
)
def test_groups_partition_the_world(layout: RankLayout, axes: tuple[str, ...]) -> None:
    groups = list(layout.groups(axes))
    assert sorted(itertools.chain(*groups)) == list(range(layout.world_size))
    for group in groups:
        assert group == tuple(sorted(group))
        assert all(layout.group(axes, rank) == group for rank in group)


def test_default_order_keeps_tensor_parallel_ranks_together() -> None:
    layout = RankLayout(tp=2, cp=4, dp=2, pp=2)
    assert layout.group(("tp",), 0) == (0, 1)
    assert layout.group(("cp",), 0) == (0, 2, 4, 6)
    assert layout.group(("dp", "cp"), 1) == (1, 3, 5, 7, 9, 11, 13, 15)
    assert layout.group(("pp",), 5) == (5, 21)


def test_one_rank_of_a_large_world_is_cheap() -> None:
    layout = RankLayout(tp=8, cp=50, dp=25, pp=10)
    assert layout.world_size == 100_000
    start = time.perf_counter()
    assert len(layout.group(("dp", "cp"), 99_999)) == 50 * 25
    assert layout.group(("cp",), 99_999)[-1] < 100_000
    assert time.perf_counter() - start < 0.05


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"tp": 0}, "tp"),
        ({"ep": 2}, "ep"),
        ({"order": "tp-cp-xx"}, "'xx'"),
        ({"order": "tp-tp-cp"}, "'tp'"),
        ({"dp": 2, "order": "tp-cp-pp"}, "'dp'"),
    ],
)
def test_a_wrong_layout_is_refused_by_name(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        RankLayout(**arguments)


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    with pytest.raises(InputError, match="rank"):
        RankLayout(cp=4).group(("cp",), rank)
