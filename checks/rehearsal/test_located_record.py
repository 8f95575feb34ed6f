"""The record of what is named for each planted defect is whole, and judged by the present table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.rehearsal.located import ALONE, PLANTED, expected, judged, summary
from benchmarks.tables import read_record
from checks.faults.trials import FAULTS


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
