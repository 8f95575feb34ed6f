"""The record of the random batches: what is in it, what is skipped, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planner import fuzz
from ringproof.errors import InputError
from ringproof.reference.planning import Plan

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.planner.fuzz", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_few_batches_have_no_problem() -> None:
    for seed in range(60):
        assert fuzz.examine(seed)[0] == []


def test_a_broken_planner_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a plan that forgets its last microbatch."""
    original = fuzz.make_plan

    def forgets(*arguments: Any) -> Plan:
        plan = original(*arguments)
        object.__setattr__(plan, "microbatches", plan.microbatches[:-1])
        return plan

    monkeypatch.setattr(fuzz, "make_plan", forgets)
    assert all(fuzz.examine(seed)[0] for seed in range(5))


def test_a_crash_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashes(*arguments: object) -> Plan:
        raise ZeroDivisionError("here")

    monkeypatch.setattr(fuzz, "make_plan", crashes)
    assert fuzz.examine(7)[0] == ["seed 7: ZeroDivisionError: here"]


def test_ranges_join_and_say_what_is_missing() -> None:
    ranges = fuzz.joined([[0, 500], [1000, 1500]], 2000, 2500)
    assert ranges == [[0, 500], [1000, 1500], [2000, 2500]]
    assert list(fuzz.missing(ranges, 100, 2600)) == [(500, 1000), (1500, 2000), (2500, 2600)]
    assert fuzz.joined(ranges, 500, 1000) == [[0, 1500], [2000, 2500]]
    assert list(fuzz.missing([], 0, 1200)) == [(0, 500), (500, 1000), (1000, 1200)]
    assert list(fuzz.missing([[0, 5000]], 100, 1200)) == []


def test_runs_add_up_and_repeat_nothing(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert run("--batches", "30", "--json", str(path)).returncode == 0
    assert json.loads(path.read_text())["seeds"] == [[0, 30]]
    assert run("--batches", "40", "--json", str(path)).returncode == 0
    record = json.loads(path.read_text())
    assert (record["batches"], record["seeds"]) == (40, [[0, 40]])
    assert record["problem_count"] == 0


def test_a_record_of_other_sources_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"sources": "0" * 64, "batches": 5}))
    done = run("--batches", "30", "--json", str(path))
    assert done.returncode == 2
    assert "other planner sources" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(path.read_text())["batches"] == 5
    path.write_text("not JSON")
    with pytest.raises(InputError, match="cannot be read"):
        fuzz.opened(path, fuzz.digest())
