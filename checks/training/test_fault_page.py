"""The page of faults says what was recorded, and the record is of the faults that there are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks.training import fault_page
from smoke.faults import FAULTS


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
