"""Packing sequence by sequence: upstream's rule, never longer than that, and in linear time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from checks.planning.batches import REAL, Mixed, domain, lognormal
from ringproof.reference.planning import AttentionOnly, CostModel, Domain, make_plan
from ringproof.reference.planning import packing as packing_module
from ringproof.reference.planning import planner as planner_module
from ringproof.reference.planning.costs import Batch, make_batch
from ringproof.reference.planning.groups import PackedGroup, PackedMicrobatch, use_all_ranks
from ringproof.reference.planning.packing import (
    first_fit_decreasing,
    pack_as_upstream,
    pack_greedily,
    pack_in_shares,
)

ENOUGH = 1 << 40


def groups(packed: PackedMicrobatch, batch: Batch) -> list[tuple[int, list[int]]]:
    """Sizes and lengths, largest first."""
    found = []
    for group in packed.groups:
        lengths = [batch.distinct[batch.kind[place]] for place in sorted(group.members)]
        found.append((packed.table.sizes[group.level], lengths))
    return sorted(found, reverse=True)


def places(packed: tuple[PackedMicrobatch, ...]) -> list[int]:
    """Every sequence that was packed, by its place."""
    return sorted(place for one in packed for group in one.groups for place in group.members)


def test_the_rule_by_hand() -> None:
    """4 ranks of 512 tokens: 1,024 needs two of them, each for 524,288. A rank of its own is the
    first place for 512 that makes nobody busier, and for the next. Then all tokens are used up."""
    batch = make_batch([256, 512, 1024, 512], domain(4, 512), AttentionOnly())
    first, second = pack_as_upstream(batch)
    assert groups(first, batch) == [(2, [1024]), (1, [512]), (1, [512])]
    assert groups(second, batch) == [(4, [256])]


def test_no_size_is_left_out_where_a_larger_one_is_faster() -> None:
    """Little to do besides one long sequence: half of the ranks share it, or most would wait."""
    batch = make_batch([4096, 64, 64, 64, 64], domain(8, 4096), AttentionOnly())
    (packed,) = pack_greedily(batch, ENOUGH)
    assert max(groups(packed, batch))[0] >= 4


def test_a_share_has_sequences_of_all_lengths() -> None:
    batch = make_batch(lognormal(2, 400).tolist(), domain(16, 8192), REAL)
    packed = pack_in_shares(batch, 8, ENOUGH)
    assert places(packed) == list(range(400))
    assert len(packed) == 8
    times = [one.time for one in packed]
    assert max(times) < 1.3 * min(times)
    apart = [one.time for one in pack_greedily(batch, ENOUGH)]
    assert max(apart) > 1.3 * min(apart), "and neighbours in length have not"


def case(seed: int) -> tuple[Domain, list[int]]:
    rng = np.random.default_rng([11, seed])
    ranks, budget = int(rng.choice([4, 8, 16])), int(rng.choice([1024, 2048, 4096]))
    lengths = lognormal(seed, int(rng.integers(8, 120)), longest=min(8192, ranks * budget))
    return domain(ranks, budget), np.minimum(-(-lengths // 32) * 32, ranks * budget).tolist()


def longer_than_upstream(model: CostModel) -> int:
    """Of forty batches, those whose plan takes longer than that of upstream's rule."""
    count = 0
    for seed in range(40):
        limits, lengths = case(seed)
        batch = make_batch(lengths, limits, model)
        upstream = sum(one.time + batch.microbatch_overhead for one in pack_as_upstream(batch))
        plan = make_plan(lengths, limits, model)
        count += plan.metrics.makespan > upstream * batch.unit_cost * (1 + 1e-9)
    return count


@pytest.mark.parametrize(
    "model", [AttentionOnly(), Mixed(), REAL], ids=["attention", "mixed", "h100"]
)
def test_no_plan_is_longer_than_upstreams(model: CostModel) -> None:
    assert longer_than_upstream(model) == 0


def test_without_upstreams_rule_and_a_comparison_some_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "_EFFORT", 0)
    assert longer_than_upstream(REAL) > 0


def placements(lengths: list[int], limits: Domain, effort: int) -> int:
    """Sequences that were placed while a batch was packed, those of discarded tries included."""
    count = 0
    original = packing_module._Filling.fill

    def counted(filling: Any, *arguments: Any) -> None:
        nonlocal count
        original(filling, *arguments)
        count += len(filling.members)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing_module._Filling, "fill", counted)
        packed = pack_greedily(make_batch(lengths, limits, REAL), effort)
    assert places(packed) == list(range(len(lengths)))
    return count


@pytest.mark.parametrize("ranks", [16, 512])
def test_effort_bounds_what_is_placed(ranks: int) -> None:
    """Each sequence once, the effort, and the last try, which may be in vain."""
    lengths = np.random.default_rng(4).integers(64, 8192, 4000).tolist()
    limits = domain(ranks, 4096)
    fill = 1000  # a microbatch has about as many at most, on 512 ranks
    for effort in (0, 1000):
        assert placements(lengths, limits, effort) <= len(lengths) + effort + fill
    assert placements(lengths, limits, ENOUGH) > len(lengths) + 1000 + fill


def test_the_time_of_packing_is_that_of_the_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the sequences are looked at four times as often, not sixteen times."""
    looks = {1000: 0, 4000: 0}
    original = packing_module._Filling._group_for

    def counted(*arguments: Any) -> Any:
        looks[count] += 1
        return original(*arguments)

    monkeypatch.setattr(packing_module._Filling, "_group_for", counted)
    for count in looks:
        lengths = np.random.default_rng(4).integers(64, 8192, count).tolist()
        pack_as_upstream(make_batch(lengths, domain(8, 8192), REAL))
    assert 1000 < looks[1000] < looks[4000] < 6 * looks[1000]


def test_ranks_without_work_are_taken_before_groups_are_joined() -> None:
    """Four sequences on eight ranks: joined first, two would share four ranks and take longer."""
    batch = make_batch([1024, 1024, 896, 896], domain(8, 2048), REAL)
    table = batch.table((1, 2, 4, 8))
    alone = [PackedGroup(0, table.time(0, [place]), [place]) for place in range(4)]
    packed = use_all_ranks(table, alone)
    assert packed.idle == 0
    assert groups(packed, batch) == [(2, [1024]), (2, [1024]), (2, [896]), (2, [896])]


def test_a_long_group_is_joined_with_a_short_one() -> None:
    """On a rank each they take 4096 and 64 squared; on two together, half of the sum."""
    batch = make_batch([4096, 64], domain(2, 8192), AttentionOnly())
    table = batch.table((1, 2))
    alone = [PackedGroup(0, table.time(0, [place]), [place]) for place in range(2)]
    assert groups(use_all_ranks(table, alone), batch) == [(2, [4096, 64])]


def test_first_fit_goes_to_the_first_pack_with_room() -> None:
    limits = domain(4, 10)
    assert first_fit_decreasing([4, 6, 5, 5, 2], limits) == [[1, 0], [2, 3], [4]]
    assert first_fit_decreasing([4, 6], replace(limits, max_sequences=1)) == [[1], [0]]


def test_long_tails_are_planned_near_their_bound() -> None:
    """Lengths to 64 times the budget, groups across nodes: most of what seems to be missing without
    latencies in the bound is what groups cost whatever is in them."""
    drawn = np.random.default_rng(0).lognormal(np.log(2048) - 1.5**2 / 2, 1.5, 2000)
    lengths = np.clip(drawn, 16, 65536).astype(np.int64)
    machine = replace(REAL.machine, intra_latency_seconds=0, inter_latency_seconds=0)
    found = make_plan(lengths, domain(64, 1024), REAL).metrics
    without = make_plan(lengths, domain(64, 1024), replace(REAL, machine=machine)).metrics
    assert found.ratio < 1.12
    assert found.makespan > 1.15 * without.lower_bound
