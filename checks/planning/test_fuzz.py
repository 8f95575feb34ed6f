"""The fuzz of the planner: its findings, and its record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planner import fuzz
from ringproof.reference.planning import Plan

ROOT = Path(__file__).resolve().parents[2]


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


def test_the_record_says_what_was_planned(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    command = [sys.executable, "-m", "benchmarks.planner.fuzz", "--batches", "30", "--json"]
    subprocess.run([*command, str(path)], check=True, cwd=ROOT)
    record = json.loads(path.read_text())
    assert (record["batches"], record["problem_count"]) == (30, 0)
    assert record["slowest_seed"] in range(30)
