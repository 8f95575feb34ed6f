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


MUTATIONS = {
    "a negative length": (lambda data: data["lengths"].__setitem__(0, -5), "-5 is less than 1"),
    "a length of 0": (lambda data: data["lengths"].__setitem__(0, 0), "0 is less than 1"),
    "no sequences": (lambda data: data.update(lengths=[], microbatches=[]), "has no sequences"),
    "a size of 0": (lambda data: data["cp_sizes"].append(0), "0 does not divide the domain"),
    "a size that has no last group": (lambda data: data["cp_sizes"].append(3), "3 does not divide"),
    "more ranks than anybody has": (
        lambda data: data.update(ranks=10**12),
        "ranks 8 to 999999999999 are in no group",
    ),
    "a count that is not the plan's": (
        lambda data: data["metrics"].update(cp_histogram={"1": 64}),
        "metrics.cp_histogram",
    ),
    "a makespan below its bound": (
        lambda data: data["metrics"].update(makespan=data["metrics"]["lower_bound"] / 2),
        "is below its lower bound",
    ),
    "a ratio of something else": (
        lambda data: data["metrics"].update(ratio=1.0),
        "metrics.ratio: 1.0 is not",
    ),
    "negative padding": (
        lambda data: data["metrics"].update(padding_fraction=-0.1),
        "metrics.padding_fraction",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_validate_sees_what_no_plan_may_say(tmp_path: Path, name: str) -> None:
    data = plan_json()
    assert data["metrics"]["ratio"] > 1.0001
    change, said = MUTATIONS[name]
    change(data)
    done = plan("validate", saved(tmp_path, data))
    assert done.code == 1
    assert said in done.out


def test_a_group_that_does_not_exist_is_seen(tmp_path: Path) -> None:
    """Of size 3 there is no last group on 8 ranks, so upstream could not look the others up."""
    groups = [{"ranks": [0, 1, 2], "sequences": [0]}, {"ranks": [3, 4, 5], "sequences": [1]}]
    data = {
        "version": 1,
        "ranks": 8,
        "max_tokens_per_rank": 64,
        "cp_sizes": [2, 3],
        "lengths": [5, 6, 7],
        "microbatches": [{"groups": [*groups, {"ranks": [6, 7], "sequences": [2]}]}],
    }
    assert "3 does not divide the domain of 8" in plan("validate", saved(tmp_path, data)).out


def test_metrics_may_be_left_out_but_not_be_anything(tmp_path: Path) -> None:
    data = plan_json()
    for metrics in ("x", {"makespan": "1"}, {"makespan": 10**400}, {"cp_histogram": []}):
        assert plan("validate", saved(tmp_path, {**data, "metrics": metrics})).code == 2
    del data["metrics"]
    assert plan("validate", saved(tmp_path, data)).code == 0
