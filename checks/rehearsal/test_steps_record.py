"""The record of training steps of frameworks is of launches that are there, and names the rest."""

from __future__ import annotations

from benchmarks.rehearsal.steps import STEPS, launches
from benchmarks.tables import read_record, steps_table


def test_every_row_is_of_a_launch_and_every_other_launch_is_named_as_not_recorded() -> None:
    record, known = read_record("rehearsal/results/steps.json"), launches()
    assert record["steps"] == STEPS and record["rows"]
    for name, row in record["rows"].items():
        assert row["ranks"] == known[name]["ranks"], name
    without = {**record, "rows": dict(list(record["rows"].items())[1:])}
    for one in (record, without):
        said = steps_table(one).partition("\nNot recorded: ")[2].rstrip(".\n").split("; ")
        assert [name for name in said if name] == [
            name for name in known if name not in one["rows"]
        ]
