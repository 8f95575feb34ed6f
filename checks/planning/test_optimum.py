"""Tiny batches against the exact optimum over all ways to divide them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from checks.planning.batches import Mixed, random_case
from ringproof.reference.planning import AttentionOnly, CostModel, Domain, make_plan
from ringproof.reference.planning import costs as costs_module
from ringproof.reference.planning import planner as planner_module
from ringproof.reference.planning.costs import make_batch

SIZES = (1, 2, 4)
CUTS = ((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1))
"""Every way to cut four ranks into groups."""


def parts(subset: int) -> Iterator[int]:
    """All subsets of a set of sequences, which is an integer with a bit for each."""
    part = subset
    while part:
        yield part
        part = (part - 1) & subset
    yield 0


def optimum(lengths: list[int], domain: Domain, model: CostModel) -> float:
    """The shortest iteration of any plan, by dynamic programming over sets of sequences."""
    values = np.array(lengths, np.int64)
    times = {size: model.cost(values, size) for size in SIZES}
    tokens = {size: domain.rank_rows(values, size) for size in SIZES}

    @functools.cache
    def group(subset: int, size: int) -> float:
        inside = [index for index in range(len(values)) if subset >> index & 1]
        if tokens[size][inside].sum() > domain.max_tokens_per_rank:
            return math.inf
        return float(times[size][inside].sum()) + (model.group_overhead(size) if subset else 0.0)

    @functools.cache
    def microbatch(subset: int, cut: tuple[int, ...]) -> float:
        if len(cut) == 1:
            return group(subset, cut[0])
        return min(
            max(group(part, cut[0]), microbatch(subset & ~part, cut[1:])) for part in parts(subset)
        )

    @functools.cache
    def iteration(subset: int) -> float:
        if not subset:
            return 0.0
        first = subset & -subset
        return min(
            min(microbatch(part, cut) for cut in CUTS)
            + model.microbatch_overhead
            + iteration(subset & ~part)
            for part in parts(subset)
            if part & first
        )

    return iteration((1 << len(values)) - 1)


@pytest.mark.parametrize("model", [AttentionOnly(), Mixed()], ids=["attention", "mixed"])
def test_tiny_plans_are_near_the_optimum_and_never_below(model: CostModel) -> None:
    ratios = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        lengths = np.clip(rng.lognormal(5.5, 1, int(rng.integers(1, 8))), 8, 2000).astype(int)
        domain = Domain(ranks=4, max_tokens_per_rank=512, cp_sizes=SIZES)
        plan = make_plan(lengths.tolist(), domain, model)
        best = optimum(lengths.tolist(), domain, model)
        assert plan.metrics.makespan >= best * (1 - 1e-9)  # costs are rounded
        assert plan.metrics.lower_bound <= best * (1 + 1e-9)
        ratios.append(plan.metrics.makespan / best)
    assert float(np.mean(ratios)) <= 1.05, ratios


def longest_free_ratio() -> float:
    """Plan over bound, the largest of random batches without a price for communication."""
    cases = (random_case(seed, most=120) for seed in (60, 153, 265, 674, 803, 888))
    return max(
        make_plan(lengths, limits, AttentionOnly()).metrics.ratio for limits, lengths in cases
    )


def test_where_communication_is_free_the_optimum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group of all ranks takes no longer than any plan; 0.3% above it counts as found."""
    assert longest_free_ratio() <= 1.003
    monkeypatch.setattr(planner_module, "communication_is_free", lambda *_: False)
    assert longest_free_ratio() > 1.03


def test_one_group_of_all_ranks_is_not_taken_where_it_has_a_price() -> None:
    domain = Domain(ranks=4, max_tokens_per_rank=512, cp_sizes=SIZES)
    free, dear = AttentionOnly(), Mixed()
    lengths = np.array([400, 300, 200, 100])
    assert planner_module.communication_is_free(make_batch(lengths, domain, free))
    assert not planner_module.communication_is_free(make_batch(lengths, domain, dear))
    assert max(make_plan(lengths, domain, dear).metrics.cp_histogram) < 4


def test_the_oracle_knows_a_hand_made_case() -> None:
    """Two sequences of 512 and 4 ranks: side by side on two ranks each, 512 * 512 / 2."""
    domain = Domain(ranks=4, max_tokens_per_rank=512, cp_sizes=SIZES)
    assert optimum([512, 512], domain, AttentionOnly()) == 512 * 512 / 2
    # On top of each other they would take as long; one alone on two ranks wastes half.
    assert optimum([512], domain, AttentionOnly()) == 512 * 512 / 4


def test_the_bound_knows_what_groups_cost() -> None:
    """Two sequences that fill three quarters of all ranks: nothing else is possible, so no gap."""
    domain = Domain(ranks=4, max_tokens_per_rank=512, cp_sizes=SIZES)
    plan = make_plan([1500, 1500], domain, Mixed())
    assert plan.metrics.lower_bound == pytest.approx(plan.metrics.makespan)
    assert plan.metrics.lower_bound == pytest.approx(optimum([1500, 1500], domain, Mixed()))


def test_a_bound_that_counts_a_group_per_sequence_is_too_high(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: small sequences share a group, and what it costs."""
    domain = Domain(ranks=4, max_tokens_per_rank=512, cp_sizes=(4,))
    lengths = [100, 120, 140, 90]
    assert make_plan(lengths, domain, Mixed()).metrics.ratio >= 1
    monkeypatch.setattr(
        costs_module, "shared_overhead", lambda overhead, rows, _: overhead + 0 * rows
    )
    assert make_plan(lengths, domain, Mixed()).metrics.ratio < 1
