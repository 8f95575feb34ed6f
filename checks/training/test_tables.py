"""The pages about the trainer and its faults say what was recorded."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.training import fault_page, tables
from ringproof.cli.main import app
from smoke.faults import FAULTS
from smoke.training_matrix import PRESETS, SPREADS, TOLERANCE, largest_difference


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tables.RESULTS / name).read_text(encoding="utf-8"))
    return found


def test_the_page_has_the_recorded_tables() -> None:
    text = tables.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == len(tables.TABLES)
    assert tables.page(text) == text


def test_the_whole_matrix_was_run_and_holds() -> None:
    result = recorded("matrix.json")
    found = {(row["spread"], row["preset"], row["mtp"]) for row in result["rows"]}
    assert found == {(s, p, mtp) for s in SPREADS for p in PRESETS for mtp in (0, 1)}
    assert result["tolerance"] == TOLERANCE
    assert max(row["difference"] for row in result["rows"]) <= TOLERANCE


def test_the_curves_lie_on_each_other() -> None:
    result = recorded("convergence.json")
    curves = [
        list(zip(curve["loss"], curve["grad_norm"], strict=True))
        for curve in result["curves"].values()
    ]
    assert len(curves) == 3
    assert {len(curve) for curve in curves} == {300}
    assert all(largest_difference(curve, curves[1]) <= TOLERANCE for curve in curves)
    assert curves[1][-1][0] < 0.6 * curves[1][0][0], "and the model learns"


@pytest.mark.parametrize("schedule", ["padded", "dynamic"])
def test_the_command_for_logs_agrees(schedule: str) -> None:
    logs = [str(tables.RESULTS / f"convergence-{name}.csv") for name in (schedule, "packed")]
    result = CliRunner().invoke(app, ["logs", "parity", *logs, "--tol", str(TOLERANCE)])
    assert result.exit_code == 0, result.output
    assert "over 300 common steps" in result.output


def test_a_difference_beyond_the_tolerance_stands_out() -> None:
    row = {"preset": "p", "mtp": 1, "spread": "s", "ranks": 2, "error": ""}
    for difference, cell in ((0.0, "| 0 |"), (3e-15, "| 3e-15 |"), (2e-3, "| **2e-03** |")):
        result = {"tolerance": 1e-9, "rows": [{**row, "difference": difference}]}
        assert tables.matrix_table(result).endswith(f"| s | 2 {cell}\n")
    failed = {"tolerance": 1e-9, "rows": [{**row, "difference": None, "error": "rank 1 died"}]}
    assert "**rank 1 died**" in tables.matrix_table(failed)


@pytest.mark.parametrize("wrong", [1.0 + 1e-8, float("nan")])
def test_one_wrong_step_is_beyond_the_tolerance(wrong: float) -> None:
    wanted = [(1.0, 2.0), (1.0, 2.0)]
    assert largest_difference([(1.0, 2.0), (wrong, 2.0)], wanted) > TOLERANCE
    assert largest_difference(wanted, wanted) == 0.0


@pytest.fixture
def record() -> dict[str, Any]:
    return fault_page.read_record()


def test_the_page_is_as_recorded(record: dict[str, Any]) -> None:
    text = fault_page.PAGE.read_text(encoding="utf-8")
    assert fault_page.page(text, record) == text, "run: python -m benchmarks.training.fault_page"
    for name, table in fault_page.TABLES.items():
        assert f"<!-- table: {name} -->\n\n{table(record)}" in text


def test_the_record_is_of_every_fault(record: dict[str, Any]) -> None:
    fields = ("id", "broken", "stands_for", "setup", "proof")
    recorded = [tuple(row[field] for field in fields) for row in record["faults"]]
    assert recorded == [tuple(getattr(fault, field) for field in fields) for fault in FAULTS]


def test_the_rate_is_counted_from_the_rows(record: dict[str, Any]) -> None:
    rows = record["faults"]
    assert record["injected"] == len(rows)
    assert record["detected"] == sum(row["proof"] in row["red"] for row in rows)
    assert record["detected"] == record["injected"] >= 20
    assert not any(clean["red"] for clean in record["clean"].values())


def test_a_fault_that_was_missed_would_stand_out(record: dict[str, Any]) -> None:
    other = copy.deepcopy(record)
    other["faults"][0].update(red=[], detected=False)
    assert f"**{FAULTS[0].proof}: missed**" in fault_page.fault_table(other)
    assert f"`{FAULTS[0].id}` |" in fault_page.rate_table(other).splitlines()[-1]
    text = fault_page.PAGE.read_text(encoding="utf-8")
    assert fault_page.page(text, other) != text
