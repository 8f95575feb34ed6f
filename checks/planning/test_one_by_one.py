"""Small batches, dealt one by one: upstream's rule, and never longer than that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from checks.planning.batches import REAL, Mixed, domain, lognormal
from ringproof.reference.planning import AttentionOnly, Domain, make_plan, violations
from ringproof.reference.planning import greedy as greedy_module
from ringproof.reference.planning import planner as planner_module
from ringproof.reference.planning.costs import Batch, make_batch
from ringproof.reference.planning.greedy import one_by_one
from ringproof.reference.planning.groups import Packing, assembled
from ringproof.reference.planning.timing import StepCost


def groups(packing: Packing, batch: Batch) -> list[tuple[int, list[int]]]:
    """Sizes and lengths, largest first."""
    found = []
    for index, level in enumerate(packing.groups.level.tolist()):
        kinds = batch.kind[packing.members[packing.home == index]]
        lengths = batch.distinct[np.sort(kinds)].tolist()
        found.append((packing.sizes[level], lengths))
    return sorted(found, reverse=True)


def test_the_rule_by_hand() -> None:
    """4 ranks of 512 tokens: 1,024 needs two of them, each for 524,288. A rank of its own is the
    first place for 512 that makes nobody busier, and for the next. Then all tokens are used up."""
    batch = make_batch(np.array([256, 512, 1024, 512]), domain(4, 512), AttentionOnly())
    first, second = one_by_one(batch, as_upstream=True)
    assert groups(first, batch) == [(2, [1024]), (1, [512]), (1, [512])]
    assert groups(second, batch) == [(4, [256])]


def test_no_size_is_left_out_where_a_larger_one_is_faster() -> None:
    """Little to do besides one long sequence: half of the ranks share it, or most would wait."""
    limits = domain(8, 4096)
    batch = make_batch(np.array([4096, 64, 64, 64, 64]), limits, AttentionOnly())
    (packing,) = one_by_one(batch)
    assert max(groups(packing, batch))[0] >= 4


def case(seed: int) -> tuple[Domain, np.ndarray]:
    rng = np.random.default_rng([11, seed])
    ranks, budget = int(rng.choice([4, 8, 16])), int(rng.choice([1024, 2048, 4096]))
    lengths = lognormal(seed, int(rng.integers(8, 120)), longest=min(8192, ranks * budget))
    return domain(ranks, budget), np.minimum(-(-lengths // 32) * 32, ranks * budget)


def longer_than_upstream(model: AttentionOnly | Mixed | StepCost) -> int:
    """Of forty batches, those whose plan takes longer than that of upstream's rule."""
    count = 0
    for seed in range(40):
        limits, lengths = case(seed)
        batch = make_batch(lengths, limits, model)
        packings = one_by_one(batch, as_upstream=True, even=False)
        upstream = sum(packing.ticks + batch.microbatch_overhead for packing in packings)
        plan = make_plan(lengths, limits, model)
        count += plan.metrics.makespan > upstream * batch.tick * (1 + 1e-9)
    return count


@pytest.mark.parametrize(
    "model", [AttentionOnly(), Mixed(), REAL], ids=["attention", "mixed", "h100"]
)
def test_no_plan_is_longer_than_upstreams(model: AttentionOnly | Mixed | StepCost) -> None:
    assert longer_than_upstream(model) == 0


def test_without_dealing_one_by_one_some_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "_SMALL", 0)
    monkeypatch.setattr(planner_module, "_TABLE", 0)
    assert longer_than_upstream(REAL) > 0


def test_small_batches_are_not_divided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A division takes longer than upstream's packer needs for the whole batch."""
    limits = domain(8, 2048)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("divided")

    monkeypatch.setattr(planner_module, "divide", refuse)
    for count in (64, 128, 256):
        plan = make_plan(lognormal(3, count), limits, REAL)
        assert violations(plan.as_json()) == []
        assert plan.metrics.ratio < 1.06
    with pytest.raises(AssertionError, match="divided"):
        make_plan(lognormal(3, 300), domain(32, 2048), REAL)


def placements(lengths: np.ndarray, limits: Domain, effort: int) -> int:
    """Sequences that were placed while a batch was planned, those of discarded tries included."""
    count = 0
    original = greedy_module._Filling._add

    def counted(*arguments: object) -> None:
        nonlocal count
        count += 1
        original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_module._Filling, "_add", counted)
        batch = make_batch(lengths, limits, REAL)
        packings = one_by_one(batch, effort=effort)
    assert sorted(np.concatenate([one.members for one in packings]).tolist()) == list(
        range(len(lengths))
    )
    return count


@pytest.mark.parametrize("ranks", [16, 512])
def test_effort_bounds_what_is_placed(ranks: int) -> None:
    """Each sequence once, the effort, and the last try, which may be in vain."""
    lengths = np.random.default_rng(4).integers(64, 8192, 4000)
    limits = domain(ranks, 4096)
    fill = ranks * 4096 // 64
    for effort in (0, 4000):
        assert placements(lengths, limits, effort) <= len(lengths) + effort + 2 * fill
    assert placements(lengths, limits, 10**9) > len(lengths) + 4000


def test_the_time_of_dealing_is_that_of_the_sequences() -> None:
    """Four times the sequences are looked at four times as often, not sixteen times."""
    limits, looks = domain(8, 8192), {1000: 0, 4000: 0}
    original = greedy_module._Filling._somewhere

    def counted(*arguments: Any) -> Any:
        looks[count] += 1
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_module._Filling, "_somewhere", counted)
        for count in looks:
            lengths = np.random.default_rng(4).integers(64, 8192, count)
            one_by_one(make_batch(lengths, limits, REAL), as_upstream=True)
    assert 1000 < looks[1000] < looks[4000] < 6 * looks[1000]


def test_ranks_without_work_are_taken_before_groups_are_joined() -> None:
    """Four sequences on eight ranks: joined first, two would share four ranks and take longer."""
    limits = domain(8, 2048)
    batch = make_batch(np.array([1024, 1024, 896, 896]), limits, REAL)
    level, members, home = np.zeros(4, np.int64), np.arange(4), np.arange(4)
    packing = assembled(batch, (1, 2, 4, 8), level, members, home)
    assert packing.idle == 0
    assert groups(packing, batch) == [(2, [1024]), (2, [1024]), (2, [896]), (2, [896])]


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
