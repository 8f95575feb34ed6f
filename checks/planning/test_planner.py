"""Every plan is legal, reproducible and within its certified bound's reach."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.planning.batches import Mixed, domain, lognormal, random_case
from checks.running import one_line
from ringproof.reference.planning import (
    AttentionOnly,
    CostModel,
    Domain,
    Goal,
    Pipeline,
    Plan,
    make_plan,
    violations,
)
from ringproof.reference.planning import planner as planner_module
from ringproof.reference.planning.costs import Batch
from ringproof.reference.planning.groups import PackedGroup, PackedMicrobatch

MODELS: tuple[CostModel, ...] = (AttentionOnly(), Mixed())


def problems(plan: Plan, limits: Domain) -> list[str]:
    found = violations(
        plan.as_json(),
        rank_multiple=limits.rank_multiple,
        multiple=limits.microbatch_multiple,
        max_sequences=limits.max_sequences,
    )
    most = limits.max_sequences or len(plan.lengths)
    groups = [group for microbatch in plan.microbatches for group in microbatch.groups]
    assert all(len(group.sequences) <= most for group in groups)
    return found


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), model=st.sampled_from(MODELS), ahead=st.booleans())
def test_any_batch_gets_a_legal_plan(seed: int, model: CostModel, ahead: bool) -> None:
    limits, lengths = random_case(seed)
    plan = make_plan(lengths, limits, model, Goal(objective="async" if ahead else "sync"))
    assert problems(plan, limits) == []
    assert plan.metrics.ratio >= 1 - 1e-9
    assert sum(plan.metrics.cp_histogram.values()) == len(lengths)


@pytest.mark.parametrize(
    "seed",
    [
        2799,  # few small groups: lengths to aim at beyond 64 bits
        6180,
        19857,  # of many chains of sizes only the last ones hold the longest sequence
    ],
)
def test_batches_that_once_went_wrong(seed: int) -> None:
    limits, lengths = random_case(seed, most=60)
    assert problems(make_plan(lengths, limits, AttentionOnly()), limits) == []


@pytest.mark.parametrize("seed", range(8))
def test_pipelines_and_odd_multiples(seed: int) -> None:
    limits = domain(16, 2048, microbatch_multiple=3)
    goal = Goal(pipeline=Pipeline(stages=4, virtual=2))
    plan = make_plan(lognormal(seed, 100), limits, Mixed(), goal)
    assert problems(plan, limits) == []
    assert plan.metrics.ratio >= 1


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 30),
    stages=st.integers(2, 5),
    virtual=st.integers(1, 3),
)
def test_no_pipelined_plan_is_below_its_bound(
    seed: int, count: int, stages: int, virtual: int
) -> None:
    """Equal short lengths come closest; with virtual stages the last run may not be full."""
    lengths = np.full(count, 128 + seed % 2000)
    goal = Goal(pipeline=Pipeline(stages, virtual))
    plan = make_plan(lengths, domain(4, 1024), AttentionOnly(), goal)
    assert plan.metrics.ratio >= 1 - 1e-9


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_too_few_sequences_end_in_declared_dummies(count: int) -> None:
    limits = domain(8, 1024, microbatch_multiple=4)
    plan = make_plan([100] * count, limits, AttentionOnly())
    assert problems(plan, limits) == []
    assert len(plan.microbatches) % 4 == 0
    empty = [m for m in plan.microbatches if all(group.dummy for group in m.groups)]
    assert len(empty) == len(plan.microbatches) - min(count, len(plan.microbatches))


def test_enough_sequences_leave_no_dummy() -> None:
    for seed in range(20):
        limits = domain(12, 2048, microbatch_multiple=4)
        plan = make_plan(lognormal(seed, 60), limits, AttentionOnly())
        assert not any(group.dummy for m in plan.microbatches for group in m.groups)


@pytest.mark.parametrize(("ranks", "budget"), [(32, 2048), (64, 2048), (64, 8192), (128, 4096)])
def test_lognormal_batches_come_within_a_hundredth_of_the_bound(ranks: int, budget: int) -> None:
    for seed in range(5):
        plan = make_plan(lognormal(seed, 512), domain(ranks, budget), AttentionOnly())
        assert plan.metrics.ratio <= 1.01


def test_makespan_is_what_the_plan_says() -> None:
    """Counted again from the JSON: the longest group of each microbatch, squares over size."""
    lengths = lognormal(3, 300)
    plan = make_plan(lengths, domain(32, 4096), AttentionOnly()).as_json()
    total = 0.0
    for microbatch in plan["microbatches"]:
        total += max(
            sum(int(lengths[i]) ** 2 for i in group["sequences"]) / len(group["ranks"])
            for group in microbatch["groups"]
        )
    assert plan["metrics"]["makespan"] == pytest.approx(total, rel=1e-9)
    # No plan beats all work spread evenly: the bound is at least that.
    assert plan["metrics"]["lower_bound"] >= float((lengths**2).sum()) / 32 * (1 - 1e-9)


def test_ranks_that_run_ahead_finish_no_later() -> None:
    for seed in range(6):
        lengths, limits = lognormal(seed, 200), domain(16, 4096)
        together = make_plan(lengths, limits, Mixed(), Goal())
        ahead = make_plan(lengths, limits, Mixed(), Goal(objective="async"))
        assert ahead.metrics.makespan <= together.metrics.makespan * (1 + 1e-9)


def test_the_same_lengths_give_the_same_plan_in_any_number_type() -> None:
    lengths, limits = lognormal(5, 400), domain(64, 2048)
    first = make_plan(lengths, limits, Mixed()).as_json()
    second = make_plan(lengths.astype(np.int32).tolist(), limits, Mixed()).as_json()
    for plan in (first, second):
        plan["metrics"].pop("planning_seconds")
    assert first == second
    other = make_plan(lengths[::-1].copy(), limits, Mixed()).as_json()
    assert other["metrics"]["makespan"] == first["metrics"]["makespan"]


def test_a_wrong_target_is_seen_in_the_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: every sequence gets a microbatch of its own, on all ranks."""

    def one_each(batch: Batch, effort: int) -> tuple[PackedMicrobatch, ...]:
        del effort
        table = batch.table(batch.domain.cp_sizes)
        groups = ([PackedGroup(3, table.time(3, [n]), [n])] for n in range(len(batch)))
        return tuple(PackedMicrobatch(table, group) for group in groups)

    lengths, limits = lognormal(1, 2000), domain(8, 2048)
    dear = Mixed(microbatch_overhead=300_000.0)
    assert make_plan(lengths, limits, dear).metrics.ratio < 1.1
    monkeypatch.setattr(planner_module, "pack_greedily", one_each)
    assert make_plan(lengths, limits, dear).metrics.ratio > 1.3


def test_costs_decide_the_sizes() -> None:
    """Where communication is dear, groups stay small: the planner looks at the cost model."""
    lengths, limits = lognormal(1, 400), domain(64, 8192)
    cheap = make_plan(lengths, limits, Mixed(per_step=0.0)).metrics.cp_histogram
    dear = make_plan(lengths, limits, Mixed(per_step=4000.0)).metrics.cp_histogram
    mean = [sum(s * n for s, n in found.items()) / 400 for found in (cheap, dear)]
    assert mean[1] < mean[0] / 2


BAD = [
    ([], "lengths"),
    ([5, 0], r"lengths\[1\]: 0 is less than 1"),
    ([5, -7], r"lengths\[1\]: -7 is less than 1"),
    ([8193], r"lengths\[0\]: 8,193 is longer than the 8,192 tokens"),
    ([1.5], "not a list of whole numbers"),
    ([[1, 2]], "not a list of whole numbers"),
]


@pytest.mark.parametrize(("lengths", "message"), BAD)
def test_bad_lengths_are_refused_in_one_line(lengths: list[int], message: str) -> None:
    with one_line(message):
        make_plan(lengths, domain(8, 1024), AttentionOnly())


def legal() -> dict[str, object]:
    return make_plan(lognormal(2, 40), domain(8, 4096), AttentionOnly()).as_json()


def _first(plan: dict) -> dict:
    return plan["microbatches"][0]["groups"][0]


MUTATIONS = {
    "is in the plan 0 times": lambda plan: _first(plan)["sequences"].pop(),
    "is in the plan 2 times": lambda plan: _first(plan)["sequences"].append(
        _first(plan)["sequences"][0]
    ),
    "there is no sequence 99": lambda plan: _first(plan)["sequences"].append(99),
    "in no group": lambda plan: plan["microbatches"][0]["groups"].pop(),
    "is in groups[0] and groups[": lambda plan: plan["microbatches"][0]["groups"].append(
        _first(plan)
    ),
    "starts at rank 1": lambda plan: _first(plan).update(
        ranks=[r + 1 for r in _first(plan)["ranks"]]
    ),
    "is not one of the sizes": lambda plan: plan.update(cp_sizes=[64]),
    "tokens per rank, more than 100": lambda plan: plan.update(max_tokens_per_rank=100),
    "is empty and not declared a dummy": lambda plan: _first(plan).update(sequences=[]),
    "is declared a dummy and has sequences": lambda plan: _first(plan).update(dummy=True),
    "its ranks are not consecutive": lambda plan: _first(plan).update(ranks=[0, 2]),
    "-5 is less than 1": lambda plan: plan["lengths"].__setitem__(0, -5),
    "0 is less than 1": lambda plan: plan["lengths"].__setitem__(0, 0),
    "has no sequences": lambda plan: plan.update(lengths=[], microbatches=[]),
    "0 does not divide the domain": lambda plan: plan["cp_sizes"].append(0),
    # Of that size there is no last group, so upstream could not look the others up.
    "3 does not divide the domain of 8": lambda plan: plan["cp_sizes"].append(3),
    "ranks 8 to 999999999999 are in no group": lambda plan: plan.update(ranks=10**12),
    "metrics.cp_histogram": lambda plan: plan["metrics"].update(cp_histogram={"1": 64}),
    "is below its lower bound": lambda plan: plan["metrics"].update(
        makespan=plan["metrics"]["lower_bound"] / 2
    ),
    "metrics.ratio: 1.5 is not": lambda plan: plan["metrics"].update(ratio=1.5),
    "metrics.padding_fraction": lambda plan: plan["metrics"].update(padding_fraction=-0.1),
}
"""Changes, by what is said of them."""


@pytest.mark.parametrize("said", MUTATIONS)
def test_the_validator_sees_every_broken_plan(said: str) -> None:
    plan = legal()
    assert violations(plan) == []
    MUTATIONS[said](plan)
    assert any(said in problem for problem in violations(plan))


def test_the_validator_counts_microbatches_and_padding() -> None:
    plan = legal()
    assert violations(plan, multiple=len(plan["microbatches"]) + 1) != []
    assert violations(plan, rank_multiple=4096) != []
    largest = max(len(group["sequences"]) for m in plan["microbatches"] for group in m["groups"])
    assert violations(plan, max_sequences=largest) == []
    assert violations(plan, max_sequences=largest - 1) != []
