"""``ringproof plan validate``: the independent validator as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.planning.plan_run import plan, plan_json


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
    done = plan("validate", saved(tmp_path, content))
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert plan("validate", str(tmp_path / "missing.json")).code == 2
