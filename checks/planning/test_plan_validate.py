"""``ringproof plan validate``: the independent validator as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.planning.plan_run import plan, plan_json, refused


def saved(tmp_path: Path, data: Any) -> str:
    path = tmp_path / "plan.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def test_validate_accepts_what_was_plan_json(tmp_path: Path) -> None:
    done = plan("validate", saved(tmp_path, plan_json()))
    assert done.code == 0
    assert "valid: 64 sequences in" in done.out
    found = plan("validate", saved(tmp_path, plan_json()), "--json", "-").json()
    assert found == {"version": 1, "valid": True, "violations": []}


def test_validate_lists_what_is_wrong(tmp_path: Path) -> None:
    data = plan_json()
    data["microbatches"][0]["groups"][0]["sequences"].pop()
    path = saved(tmp_path, data)
    done = plan("validate", path)
    assert done.code == 1
    assert "is in the plan 0 times" in done.out
    as_json = plan("validate", path, "--json", "-")
    assert as_json.code == 1
    assert as_json.json()["valid"] is False
    count = len(data["microbatches"])
    multiple = plan(
        "validate", saved(tmp_path, plan_json()), "--microbatch-multiple", str(count + 1)
    )
    assert multiple.code == 1
    padded = plan("validate", saved(tmp_path, plan_json()), "--tp", "1024")
    assert padded.code == 1


@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"version": 2}', "\x00", "[" * 100_000])
def test_validate_refuses_what_is_no_plan(tmp_path: Path, content: str) -> None:
    refused("validate", saved(tmp_path, content))
    refused("validate", str(tmp_path / "missing.json"))


def test_metrics_may_be_left_out_but_not_be_anything(tmp_path: Path) -> None:
    data = plan_json()
    for metrics in ("x", {"makespan": "1"}, {"makespan": 10**400}, {"cp_histogram": []}):
        assert plan("validate", saved(tmp_path, {**data, "metrics": metrics})).code == 2
    del data["metrics"]
    assert plan("validate", saved(tmp_path, data)).code == 0


def test_validate_names_ranks_that_do_nothing(tmp_path: Path) -> None:
    for idle in (0, 3, plan_json()["ranks"] - 1):
        data = plan_json()
        for group in data["microbatches"][0]["groups"]:
            group["ranks"] = [rank for rank in group["ranks"] if rank != idle]
        done = plan("validate", saved(tmp_path, data))
        assert done.code == 1
        assert f"microbatches[0]: rank {idle} is in no group" in done.out
