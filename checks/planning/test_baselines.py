"""The baselines: upstream's packing by hand, legal plans, and the planner is not worse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.planning.batches import REAL, Mixed, domain, lognormal
from ringproof.errors import InputError
from ringproof.reference.planning import (
    AttentionOnly,
    Domain,
    Goal,
    Pipeline,
    make_plan,
    violations,
)
from ringproof.reference.planning.baselines import best_static_plan, padded_plan, static_plan
from ringproof.reference.planning.plan import Group, Microbatch
from ringproof.reference.planning.simulate import timeline

COST = AttentionOnly()


def packs(plan):
    return [[list(group.sequences) for group in step.groups] for step in plan.microbatches]


def test_packs_close_in_order():
    """Eight ranks, CP 4, 16 tokens per rank: 64 tokens a pack, two packs a microbatch.

    Five packs; for a sixth, sequence 6 leaves the last pack that holds more than one.
    """
    lengths = [32, 32, 8, 60, 40, 16, 8, 24]
    plan = static_plan(lengths, domain(8, 16), 4, COST)
    assert packs(plan) == [[[0, 1], [2]], [[3], [4, 5]], [[7], [6]]]
    assert violations(plan.as_json()) == []
    assert plan.cp_sizes == (4,)
    assert plan.metrics.cp_histogram == {4: 8}


def by_upstream(tokens, budget, width, most=None):
    """The rule of ``DpBalancedScheduler``, from its description, on plain lists."""
    found, pack = [], []
    for sequence, rows in enumerate(tokens):
        held = sum(tokens[other] for other in pack)
        if held + rows > budget or (most is not None and len(pack) >= most):
            found.append(pack)
            pack = []
        pack.append(sequence)
    found.append(pack)
    place = len(found) - 1
    while len(found) % width:
        if len(found[place]) > 1:
            found.append([found[place].pop()])
        else:
            place -= 1
            if place < 0:
                return None  # upstream's assertion
    return found


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=60),
    st.sampled_from([(4, 1), (4, 2), (8, 4), (12, 4), (8, 8)]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([1, 2]),
)
def test_packs_are_upstreams(lengths, sizes, most, multiple):
    ranks, cp_size = sizes
    limits = domain(ranks, 64, max_sequences=most, microbatch_multiple=multiple)
    plan = static_plan(lengths, limits, cp_size, COST)
    assert violations(plan.as_json(), multiple=multiple) == []
    tokens = [-(-length // (2 * cp_size)) * 2 for length in lengths]
    wanted = by_upstream(tokens, 64, ranks // cp_size * multiple, most)
    made = [list(group.sequences) for step in plan.microbatches for group in step.groups]
    if wanted is not None:
        assert made == wanted
    else:
        assert [] in made, "upstream fails where this leaves ranks idle"
        placed = sorted(sequence for pack in made for sequence in pack)
        assert placed == list(range(len(lengths)))


def test_the_comparison_notices_another_order():
    tokens = [40, 8, 40, 8]
    assert by_upstream(tokens, 64, 2) != by_upstream(sorted(tokens), 64, 2)


def test_sorted_packs_are_first_fit_decreasing():
    """Longest first, each into the first pack with room; packs of similar time run together."""
    lengths = [32, 32, 8, 60, 40, 16, 8, 24]
    plan = static_plan(lengths, domain(8, 16), 4, COST, order="sorted")
    assert packs(plan) == [[[3], [4, 7]], [[0, 1], [5, 2, 6]]]
    assert violations(plan.as_json()) == []
    given = static_plan(lengths, domain(8, 16), 4, COST)
    assert plan.metrics.makespan < given.metrics.makespan


def test_the_best_static_plan_is_the_shortest_of_all_sizes_and_orders():
    limits = domain(16, 4096)
    cost = REAL
    lengths = lognormal(4, 300)
    size, order, plan = best_static_plan(lengths, limits, (2, 4, 8, 16), cost)
    makespans = {
        (size, order): static_plan(lengths, limits, size, cost, order=order).metrics.makespan
        for size in (2, 4, 8, 16)
        for order in ("given", "sorted")
    }
    assert makespans[size, order] == plan.metrics.makespan == min(makespans.values())
    assert len(set(makespans.values())) > 4


def test_padding_makes_every_sequence_the_longest():
    """12 ranks, CP 4, 16 rows: each sequence takes 8, so packs of 2, three to a microbatch."""
    lengths = [32, 4, 4, 4, 4, 4, 4]
    limits = Domain(ranks=12, max_tokens_per_rank=16, cp_sizes=(4, 12))
    plan = padded_plan(lengths, limits, 4, COST)
    assert violations(plan.as_json()) == []
    assert packs(plan) == [[[0, 1], [2], [3]], [[4], [5], [6]]]
    assert plan.metrics.makespan == pytest.approx((2 + 1) * 32**2 / 4)
    assert plan.metrics.padding_fraction == pytest.approx(1 - 56 / (7 * 32))
    assert static_plan(lengths, limits, 4, COST).metrics.makespan < plan.metrics.makespan


def test_makespans_by_hand():
    """Two data parallel ranks of CP 2, 16 tokens a pack: together, or each on its own."""
    together = static_plan([8, 8, 8, 4], domain(4, 8), 2, COST)
    assert packs(together) == [[[0, 1], [2, 3]]]
    assert together.metrics.makespan == pytest.approx(32 + 32)
    lengths = [4, 16, 16, 4]  # one each: 8 and 128, then 128 and 8
    sync = static_plan(lengths, domain(4, 8), 2, COST)
    ahead = static_plan(lengths, domain(4, 8), 2, COST, Goal(objective="async"))
    assert packs(sync) == packs(ahead) == [[[0], [1]], [[2], [3]]]
    assert sync.metrics.makespan == pytest.approx(128 + 128)
    assert ahead.metrics.makespan == pytest.approx(8 + 128)


@pytest.mark.parametrize("objective", ["sync", "async"])
@pytest.mark.parametrize("cost", [COST, Mixed(), REAL])
def test_the_evaluation_agrees_with_the_planner(objective, cost):
    """A plan is rated from its groups alone as the planner rated it while making it."""
    goal = Goal(objective=objective)
    limits = domain(16, 4096)
    for seed in range(5):
        lengths = lognormal(seed, 100)
        plan = make_plan(lengths, limits, cost, goal)
        found = timeline(plan, cost, goal).makespan
        assert found == pytest.approx(plan.metrics.makespan, rel=1e-12)
        worse = Microbatch((Group(0, 16, plan.microbatches[0].groups[0].sequences),))
        longer = replace(plan, microbatches=(*plan.microbatches, worse))
        assert timeline(longer, cost, goal).makespan > found


def test_pipelines_are_simulated():
    lengths = lognormal(0, 100)
    plain, deep = (
        static_plan(lengths, domain(8, 4096), 4, COST, Goal(pipeline=Pipeline(stages)))
        for stages in (1, 4)
    )
    assert plain.microbatches == deep.microbatches
    quarter = plain.metrics.makespan / 4
    assert quarter < deep.metrics.makespan < plain.metrics.makespan
    assert deep.metrics.lower_bound <= deep.metrics.makespan


def test_no_baseline_is_below_the_bound_and_dynamic_gains():
    goal = Goal(objective="async")
    cost = REAL
    for seed in range(5):
        lengths = lognormal(seed, 256)
        limits = domain(16, 4096)
        static = static_plan(lengths, limits, 8, cost, goal).metrics
        padded = padded_plan(lengths, limits, 8, cost, goal).metrics
        dynamic = make_plan(lengths, limits, cost, goal).metrics
        assert static.lower_bound == padded.lower_bound == pytest.approx(dynamic.lower_bound)
        assert dynamic.lower_bound <= dynamic.makespan < static.makespan < padded.makespan
        assert padded.padding_fraction > 0.5 > static.padding_fraction


def test_what_a_baseline_cannot_do_is_refused():
    limits = domain(8, 16)
    for plan in (static_plan, padded_plan):
        with pytest.raises(InputError, match=r"static-cp: 3 is not a group size .* 1, 2, 4, 8"):
            plan([8], limits, 3, COST)
        with pytest.raises(InputError, match="longer than the 64 tokens"):
            plan([65], limits, 4, COST)
        with pytest.raises(InputError, match=r"lengths\[1\]"):
            plan([8, 0], limits, 4, COST)
        assert plan([64], limits, 4, COST).metrics.makespan > 0
