"""Tiny batches against the exact optimum, found by OR-tools' CP-SAT."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from ortools.sat.python import cp_model

from checks.planning.batches import Mixed, random_case
from ringproof.reference.planning import AttentionOnly, CostModel, Domain, make_plan
from ringproof.reference.planning import bounds as bounds_module
from ringproof.reference.planning import planner as planner_module
from ringproof.reference.planning.costs import make_batch

SIZES = (1, 2, 4)
CUTS = ((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1))
"""Every way to cut four ranks into groups."""


@dataclass(frozen=True)
class Tables:
    """Cost, tokens and overhead per group size, as the solver wants them: whole numbers."""

    ticks: dict[int, list[int]]
    tokens: dict[int, list[int]]
    overhead: dict[int, int]
    budget: int

    @property
    def horizon(self) -> int:
        """No microbatch is longer."""
        return sum(self.ticks[1]) + sum(self.ticks[4]) + 8 * max(self.overhead.values()) + 1


def tables(lengths: list[int], domain: Domain, model: CostModel) -> Tables:
    values = np.array(lengths, np.int64)
    return Tables(
        {size: np.rint(model.cost(values, size)).astype(int).tolist() for size in SIZES},
        {size: domain.rank_tokens(values, size).tolist() for size in SIZES},
        {size: round(model.group_overhead(size)) for size in SIZES},
        domain.max_tokens_per_rank,
    )


def optimum(lengths: list[int], domain: Domain, model: CostModel) -> float:
    """The shortest iteration of any plan of at most four microbatches."""
    program = cp_model.CpModel()
    known = tables(lengths, domain, model)
    placed: list[list[cp_model.IntVar]] = [[] for _ in lengths]
    total = []
    for _ in range(min(len(lengths), 4)):
        length = program.new_int_var(0, known.horizon, "")
        cuts = [program.new_bool_var("") for _ in CUTS]
        program.add_at_most_one(cuts)
        groups = [(chosen, size) for chosen, cut in zip(cuts, CUTS, strict=True) for size in cut]
        for chosen, size in groups:
            inside = add_group(program, known, (chosen, size, length))
            for variables, variable in zip(placed, inside, strict=True):
                variables.append(variable)
        total.append(length + round(model.microbatch_overhead) * sum(cuts))
    for variables in placed:
        program.add_exactly_one(variables)
    program.minimize(sum(total))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 20
    assert solver.solve(program) == cp_model.OPTIMAL
    return float(solver.objective_value)


def add_group(
    program: cp_model.CpModel,
    known: Tables,
    group: tuple[cp_model.IntVar, int, cp_model.IntVar],
) -> list[cp_model.IntVar]:
    """A group that exists when its cut is chosen; which sequences are in it."""
    chosen, size, length = group
    inside = [program.new_bool_var("") for _ in known.ticks[size]]
    for variable in inside:
        program.add_implication(variable, chosen)
    used = sum(v * t for v, t in zip(inside, known.tokens[size], strict=True))
    program.add(used <= known.budget)
    time = sum(v * t for v, t in zip(inside, known.ticks[size], strict=True))
    program.add(length >= time + known.overhead[size] * chosen)
    return inside


@pytest.mark.parametrize("model", [AttentionOnly(), Mixed()], ids=["attention", "mixed"])
def test_tiny_plans_are_near_the_optimum_and_never_below(model: CostModel) -> None:
    ratios = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        lengths = np.clip(rng.lognormal(5.5, 1, int(rng.integers(1, 8))), 8, 2000).astype(int)
        domain = Domain(ranks=4, max_tokens_per_rank=512, cp_sizes=SIZES)
        plan = make_plan(lengths.tolist(), domain, model)
        best = optimum(lengths.tolist(), domain, model)
        assert plan.metrics.makespan >= best - 50  # rounding to whole units, a few per group
        assert plan.metrics.lower_bound <= best + 50
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
    assert longest_free_ratio() > 2


def test_one_group_of_all_ranks_is_not_taken_where_it_has_a_price() -> None:
    domain = Domain(ranks=4, max_tokens_per_rank=512, cp_sizes=SIZES)
    free, dear = AttentionOnly(), Mixed()
    lengths = np.array([400, 300, 200, 100])
    assert planner_module.communication_is_free(make_batch(lengths, domain, free), domain)
    assert not planner_module.communication_is_free(make_batch(lengths, domain, dear), domain)
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
    monkeypatch.setattr(bounds_module, "_parts", lambda batch, *_: batch.overhead[:, None])
    assert make_plan(lengths, domain, Mixed()).metrics.ratio < 1
