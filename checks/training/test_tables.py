"""The pages about the trainer, its faults and its graphs say what was recorded."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import tables
from benchmarks.graphs import parity
from ringproof.cli.main import app
from smoke.faults import FAULTS
from smoke.training_matrix import PRESETS, SPREADS, TOLERANCE, largest_difference

RESULTS = tables.BENCHMARKS / "training" / "results"


@pytest.mark.parametrize("page", tables.PAGES)
def test_a_page_has_the_recorded_tables(page: str) -> None:
    text = (tables.ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == sum(
        where == page for where, _, _ in tables.TABLES.values()
    )
    assert tables.filled(text) == text, "run: python -m benchmarks.tables"


def test_the_whole_matrix_was_run_and_holds() -> None:
    result = tables.read_record("training/results/matrix.json")
    found = {(row["spread"], row["preset"], row["mtp"]) for row in result["rows"]}
    assert found == {(s, p, mtp) for s in SPREADS for p in PRESETS for mtp in (0, 1)}
    assert result["tolerance"] == TOLERANCE
    assert max(row["difference"] for row in result["rows"]) <= TOLERANCE


def test_the_curves_lie_on_each_other() -> None:
    result = tables.read_record("training/results/convergence.json")
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
    logs = [str(RESULTS / f"convergence-{name}.csv") for name in (schedule, "packed")]
    result = CliRunner().invoke(app, ["logs", "parity", *logs, "--tol", str(TOLERANCE)])
    assert result.exit_code == 0, result.output
    assert "over 300 common steps" in result.output


@pytest.mark.parametrize(
    ("difference", "cell"),
    [(0.0, "0"), (3e-15, "3e-15"), (2e-3, "**2e-03**"), (None, "**rank 1 died**")],
)
def test_a_difference_beyond_the_tolerance_stands_out(difference: float | None, cell: str) -> None:
    row = {"preset": "p", "mtp": 1, "spread": "s", "ranks": 2, "error": "rank 1 died"}
    result = {"tolerance": 1e-9, "rows": [{**row, "difference": difference}]}
    assert tables.matrix_table(result).endswith(f"| s | 2 | {cell} |\n")


def test_the_record_is_of_every_fault() -> None:
    record = tables.read_record("training/results/faults.json")
    rows = record["faults"]
    fields = ("id", "broken", "stands_for", "setup", "proof")
    recorded = [tuple(row[field] for field in fields) for row in rows]
    assert recorded == [tuple(getattr(fault, field) for field in fields) for fault in FAULTS]
    assert record["injected"] == len(rows)
    assert record["detected"] == sum(row["proof"] in row["red"] for row in rows)
    assert record["detected"] == record["injected"] >= 20
    assert not any(clean["red"] for clean in record["clean"].values())


@pytest.mark.parametrize(
    ("change", "cell"),
    [
        ({"bitwise": False, "difference": 2e-16}, "| **2e-16** |"),
        ({"finite": False, "difference": None}, "| **not a number** |"),
        ({"replays": {"1": 3, "2": 0, "4": 5}}, "**never 2**"),
        ({"eager": 1}, "| **1** |"),
    ],
)
def test_a_training_by_graphs_that_differs_stands_out(change: dict[str, Any], cell: str) -> None:
    record = tables.read_record("graphs/results/parity.json")
    row = record["rows"][0]
    assert cell not in tables.parity_table(record)
    row.update(change)
    assert cell in tables.parity_table(record)
    assert not parity.holds(row)
