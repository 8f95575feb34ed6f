"""``ringproof plan --memory-from``: a plan's memory, from what ``ringproof fit`` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tables import planned_from_others, read_record
from checks.planning.plan_run import BASIC, LENGTHS, plan, refused
from ringproof.cli.plan_memory import memory_of
from ringproof.cli.plan_options import PlanOptions

GPU = 80_000
OPTIONS = PlanOptions(memory_from="fit.json", ranks=8)


def need(tokens: int) -> int:
    """The truth: two places, of which the second one is higher from 1,000 tokens on."""
    return max(9_000 + 10 * tokens, 3_000 + 16 * tokens) + 100 + 900


def table(*tokens: int, tp: int = 1, gpu: dict[str, Any] | None = None) -> dict[str, Any]:
    """What ``fit --vary --json`` writes, as far as it is read."""
    places = [(9_000 + 10 * at, 3_000 + 16 * at) for at in tokens]
    fits = [
        {
            "gpu": gpu,
            "layout": {"tp": tp, "pp": 1, "dp": 4, "cp": 2, "ep": 1},
            "estimates": {"cublas": {"bytes": 100}, "context": {"bytes": 900}},
            "ranks": [{"rank": 4, "tokens": at, "highest": {"forward a": one, "backward b": two}}],
        }
        for at, (one, two) in zip(tokens, places, strict=True)
    ]
    return {"choices": [*({"fit": fit} for fit in fits), {"fit": None, "refused": "no"}]}


H100 = {"name": "H100", "bytes": GPU}


def test_each_place_is_on_a_line_of_its_own() -> None:
    memory = memory_of(table(500, 2_000), OPTIONS)
    for tokens in (1, 500, 999, 1_000, 1_001, 2_000, 9_000):
        assert memory.needed(tokens) == need(tokens)
    outside = ", which is outside of what was measured"
    assert outside not in memory.said(500) + memory.said(2_000)
    assert memory.said(499).endswith(outside) and memory.said(2_001).endswith(outside)
    assert memory.budget == 0, "no GPU was named"


def test_the_budget_is_the_largest_that_fits() -> None:
    budget = memory_of(table(500, 2_000, 3_000, gpu=H100), OPTIONS).budget
    assert need(budget) <= GPU < need(budget + 1)
    assert memory_of(table(500, 2_000, gpu={**H100, "bytes": 5}), OPTIONS).budget == 0


def test_a_plan_says_its_memory_and_takes_the_budget_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(table(500, 2_000, gpu=H100)))
    given = ("--lengths", LENGTHS, "--ranks", "8", "--memory-from", str(path))
    data = plan(*given, "--json", "-").json()
    budget = memory_of(table(500, 2_000, gpu=H100), OPTIONS).budget
    assert data["max_tokens_per_rank"] == budget == data["memory"]["budget_that_fits"]
    assert data["memory"]["bytes"] == need(data["memory"]["tokens"]) <= GPU
    text = plan(*BASIC, "--memory-from", str(path)).out
    assert "it fits on H100, for up to 4,750" in " ".join(text.split())
    path.write_text(json.dumps(table(500, 2_000, gpu={**H100, "bytes": 25_000})))
    text = " ".join(plan(*BASIC, "--memory-from", str(path)).out.split())
    assert "it does not fit on H100, for up to 1,312" in text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (table(500), "a rank was measured with one number of tokens only, and a line needs two"),
        (table(500, 2_000, tp=2), "TP, PP and DP x CP were 2, 1, 8 there; plan with the same"),
        (table(), "is not a table of measurements; write it by: ringproof fit LAUNCH"),
        ({"choices": [{"fit": {"ranks": []}}]}, "is not a table of measurements"),
        ([1], "is not a table of measurements"),
    ],
)
def test_what_is_no_measurement_is_refused(tmp_path: Path, data: Any, said: str) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(data))
    assert f"--memory-from: {said}" in refused(*BASIC, "--memory-from", str(path)).replace(
        f"'{path}' ", ""
    )
    path.write_text("{")
    assert "this is not JSON" in refused(*BASIC, "--memory-from", str(path))


def test_without_a_gpu_a_budget_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(table(500, 2_000)))
    given = ("--lengths", LENGTHS, "--ranks", "8", "--memory-from", str(path))
    assert "--max-tokens-per-rank is missing" in refused(*given)
    assert "GiB for" in plan(*BASIC, "--memory-from", str(path)).out


def test_a_plan_says_of_each_recorded_budget_what_fit_measured() -> None:
    """From the two other budgets; the docs say how far off that is."""
    budgets = read_record("rehearsal/results/degrees.json")["budgets"]
    assert len(budgets) >= 3
    for budget, row in budgets.items():
        memory, planned = planned_from_others(budgets, budget)
        assert abs(planned / row["peak"] - 1) < 0.003
        assert row["tokens"] <= int(budget) < memory.budget
