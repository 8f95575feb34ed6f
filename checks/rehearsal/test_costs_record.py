"""What measures the cost of ``ringproof fit`` keeps each row, and says of a run why it failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rehearsal import costs
from benchmarks.tables import fit_costs_table

ROW = {
    "seconds": 2.0, "processor": 1.0, "memory": 10**9, "load": 0.1, "others": 0.0, "exit": 0,
    "measured": [1, 2], "peak": 7,
}  # fmt: skip


def test_a_run_that_fails_is_said_in_its_row_and_in_the_table() -> None:
    row = costs.cost_of(costs.Run("echo hello"))
    assert (row["exit"], row["measured"], row["peak"]) == (2, [], None)
    assert row["said"].startswith("error: the command: ") and row["processor"] > 0 < row["memory"]
    last = fit_costs_table({"environment": {"cores": 2}, "rows": {"fails": row, "runs": ROW}})
    fails, runs = last.splitlines()[-2:]
    assert fails.endswith(f"| {row['said']} |") and runs.endswith("| 1.0 | 3 |")


def test_the_record_is_written_after_each_row_and_named_rows_are_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ran = tmp_path / "costs.json", list[str]()

    def measured(run: costs.Run) -> dict[str, Any]:
        ran.append(run.launch)
        if run.launch == "ends":
            raise KeyboardInterrupt
        return {**ROW, "peak": len(ran)}

    def recorded(*words: str) -> dict[str, int]:
        monkeypatch.setattr("sys.argv", ["costs", "--json", str(path), *words])
        costs.main()
        return {name: row["peak"] for name, row in json.loads(path.read_text())["rows"].items()}

    monkeypatch.setattr(costs, "environment", dict)
    monkeypatch.setattr(costs, "cost_of", measured)
    runs = {name: costs.Run(name) for name in ("first one", "ends", "last one")}
    monkeypatch.setattr(costs, "RUNS", runs)
    with pytest.raises(KeyboardInterrupt):
        recorded()
    assert [*json.loads(path.read_text())["rows"]] == ["first one"]
    assert recorded("--only", "last") == {"first one": 1, "last one": 3}
    assert recorded("--only", "one") == {"first one": 4, "last one": 5}
    runs["ends"] = costs.Run("another, with options", "--whole-batch")
    assert recorded() == {"first one": 4, "ends": 6, "last one": 5}
    row = json.loads(path.read_text())["rows"]["ends"]
    assert (row["upstream"], row["options"]) == (costs.DEV, "--whole-batch")
    assert ran == [
        "first one",
        "ends",
        "last one",
        "first one",
        "last one",
        "another, with options",
    ]
