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
    assert "it fits on H100, for up to 4,750, extrapolated" in " ".join(text.split())
    assert (
        "it fits on H100, for up to 4,750"
        in plan(*BASIC, "--memory-from", str(path), "--html", "-").out
    )
    path.write_text(json.dumps(table(500, 2_000, gpu={**H100, "bytes": 25_000})))
    text = " ".join(plan(*BASIC, "--memory-from", str(path)).out.split())
    assert text.count("it does not fit on H100, for up to 1,312") == 1
    assert "1,312, extrapolated" not in text
    path.write_text(json.dumps(table(500, 2_000, gpu={**H100, "bytes": 5})))
    text = " ".join(plan(*BASIC, "--memory-from", str(path)).out.split())
    assert "it does not fit on H100, and no budget does" in text


def test_where_memory_is_the_limit_the_message_says_so(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(table(500, 2_000, gpu={**H100, "bytes": 25_000})))
    (tmp_path / "lengths.txt").write_text("10600 10600 100")
    given = ("--memory-from", str(path), "--lengths", str(tmp_path / "lengths.txt"))
    assert "--ranks is missing" in refused(*given)
    said = refused(*given, "--ranks", "8")
    assert "is longer than the 10,496 that the largest group holds" in said
    assert "1,312 tokens on a rank are the most that fit on 'H100', by --memory-from" in said
    assert "raise --max-tokens-per-rank" not in said
    more = refused(*given, "--ranks", "8", "--max-tokens-per-rank", "1000")
    assert "raise --max-tokens-per-rank" in more, "the option was given"
    path.write_text(json.dumps(table(500, 2_000, gpu={**H100, "bytes": 5})))
    said = refused(*given, "--ranks", "8")
    assert "no budget fits on 'H100': one token takes 0.00 of 0.00 GiB" in said


def with_peaks(*peaks: int) -> dict[str, Any]:
    """A table of the same tokens whose rank needs these bytes."""
    made = table(*range(1_000, 1_000 * (len(peaks) + 1), 1_000))
    for choice, peak in zip(made["choices"], peaks, strict=False):
        choice["fit"]["ranks"][0]["highest"] = {"forward a": peak}
    return made


def of_two(name: str, value: Any) -> dict[str, Any]:
    """A table whose second measurement has another value."""
    made = table(500, 2_000, gpu=H100)
    made["choices"][1]["fit"][name] = value
    return made


def recomputed(*values: str) -> dict[str, Any]:
    """A table whose measurements differ in the budget and in these values of another option."""
    made = table(500, 2_000, gpu=H100)
    for at, value in enumerate(values):
        settings = {"--max-seqlen-per-dp-cp-rank": str(at), "--recompute-granularity": value}
        made["choices"][at]["settings"] = settings
    return made


def test_measurements_may_differ_in_the_budget() -> None:
    expected = memory_of(table(500, 2_000, gpu=H100), OPTIONS)
    assert memory_of(recomputed("full", "full"), OPTIONS) == expected


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (recomputed("", "full"), "the measurements differ in '--recompute-granularity'"),
        (table(500), "rank 4 was measured with one number of tokens only, and a line needs two"),
        (table(500, 2_000, tp=2), "TP, PP and DP x CP were 2, 1, 8 there; plan with the same"),
        (with_peaks(5_000, 5_000), "rank 4 does not need more memory for more tokens"),
        (with_peaks(5_000, 4_000), "rank 4 does not need more memory for more tokens"),
        (with_peaks(5_000, 6_000, 5_500), "rank 4 does not need more memory for more tokens"),
        (table(0, 500), "rank 4 has no attention, by which tokens are counted"),
        (of_two("gpu", {"name": "A100", "bytes": 7}), "the measurements are for several GPUs"),
        (of_two("estimates", {"context": {"bytes": 7}}), "the measurements are for several GPUs"),
        (
            of_two("layout", {"tp": 2, "pp": 1, "dp": 4, "cp": 2}),
            "TP, PP and DP x CP were 1, 1, 8 and 2, 1, 8 there; measure one layout",
        ),
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


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--graphs",), "fit measures neither the padding nor the pools of CUDA graphs"),
        (("--pp", "2"), "a pipeline stage holds several microbatches"),
    ],
)
def test_what_was_not_counted_is_refused(
    tmp_path: Path, option: tuple[str, ...], said: str
) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(table(500, 2_000)))
    assert said in refused(*BASIC, "--memory-from", str(path), *option)


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
        fit = row["fit"]
        assert fit["layout"]["pp"] == len(fit["ranks"]) == 1, "which the card says"
        memory, planned = planned_from_others(budgets, budget)
        assert not memory.measured(memory.budget), "extrapolated, as the page says"
        assert abs(planned / row["peak"] - 1) < 0.003
        assert row["tokens"] <= int(budget) < memory.budget
