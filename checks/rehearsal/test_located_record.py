"""The record of what is named for each planted defect is whole, and judged by the present table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.rehearsal.forks import forks
from benchmarks.rehearsal.located import ALONE, PLANTED, SEEDS, expected, judged, summary
from benchmarks.tables import read_record
from checks.faults.kinds import KINDS
from checks.faults.trials import FAULTS
from ringproof.rehearsal.conform.cases import CASES


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return read_record("rehearsal/results/located.json")


def test_every_planted_defect_is_in_the_record(record: dict[str, Any]) -> None:
    alone = [f"{function.__name__.replace('_', '-')}@release" for _, function in ALONE]
    names = [fault.name for fault in FAULTS] + alone
    left = record["not_run"]
    assert [row["name"] for row in record["rows"]] == [name for name in names if name not in left]
    assert len(names) == 38 and set(left) <= set(names)
    assert {name.removesuffix("@release") for name in names} == set(PLANTED)


def test_verdicts_are_those_of_the_table(record: dict[str, Any]) -> None:
    for row in record["rows"]:
        phase, module = expected(row["name"])
        assert row["planted"] == phase
        assert row["verdict"] == judged(row, module), row["name"]
    assert record["summary"] == summary(record["rows"])


def test_no_defect_that_was_run_is_without_an_answer(record: dict[str, Any]) -> None:
    assert record["summary"]["exact"] >= 34
    assert all(row["phase"] and row["said"] for row in record["rows"])


def test_every_other_kind_is_in_the_record_with_its_verdict() -> None:
    rows = read_record("rehearsal/results/kinds.json")["rows"]
    assert [row["name"] for row in rows] == [kind.name for kind in KINDS]
    for row, kind in zip(rows, KINDS, strict=True):
        assert (row["breaks"], row["reported"]) == (kind.breaks, kind.reported)
        assert row["planted"] == kind.phase
        assert row["verdict"] == judged(row, kind.module), row["name"]
        assert kind.engine in row["transformer_engine"]


def test_chance_is_said_only_of_the_race() -> None:
    rows = read_record("rehearsal/results/kinds.json")["rows"]
    assert [row["name"] for row in rows if row["said"].startswith("a race")] == ["race"]


def test_no_culprit_is_named_in_a_training_without_a_defect() -> None:
    """One in which upstream itself differs from the layout without CP is no false alarm."""
    record = read_record("rehearsal/results/agreeing.json")
    names = [f"{case.id}, seed {seed}" for seed in SEEDS for case in CASES]
    left = record["not_run"]
    assert [row["name"] for row in record["rows"]] == [name for name in names if name not in left]
    assert not [row["name"] for row in record["rows"] if row["verdict"] == "alarm"]
    assert record["summary"]["agrees"] >= 20


def test_every_fork_is_in_the_record() -> None:
    rows = read_record("rehearsal/results/forks.json")["rows"]
    for row, fork in zip(rows, forks(), strict=True):
        assert (row["name"], row["planted"]) == (fork.name, fork.phase)
        assert row["verdict"] == judged(row, fork.module)


@pytest.mark.parametrize(
    ("phase", "named", "module", "verdict"),
    [
        ("forward", "a.b", r"a\.b", "exact"),
        ("forward", "a.c", r"a\.b", "near"),
        ("backward", "a.b", r"a\.b", "near"),
        ("backward", "a.c", r"a\.b", "other"),
        ("backward", "a.c", ".*", "other"),
        ("", "", ".*", "none"),
    ],
)
def test_a_verdict_needs_phase_and_module(
    phase: str, named: str, module: str, verdict: str
) -> None:
    assert judged({"phase": phase, "planted": "forward", "module": named}, module) == verdict


def test_the_record_names_no_folder_of_one_machine(record: dict[str, Any]) -> None:
    text = json.dumps(record)
    assert not any(part in text for part in ("/root/", "/home/", "/tmp/", ".cache"))
