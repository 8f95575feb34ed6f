"""The record of what is named for each planted defect is whole, and judged by the present table."""

from __future__ import annotations

import importlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.rehearsal import located, traced
from benchmarks.rehearsal.forks import forks, strangers
from benchmarks.rehearsal.frameworks import split_changes
from benchmarks.rehearsal.located import (
    ALONE,
    COSTLY,
    PLANTED,
    SEEDS,
    Locating,
    Pair,
    clean_row,
    expected,
    judged,
    seeded,
    summary,
    within,
)
from benchmarks.tables import BENCHMARKS, read_record
from checks.faults.kinds import KINDS
from checks.faults.trials import FAULTS
from ringproof.rehearsal.conform.cases import CASES
from ringproof.rehearsal.conform.matrix import training
from ringproof.rehearsal.locate.locating import AGREES, SHARDED, Run
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.trace import MOST_BYTES, TraceRequest
from ringproof.rehearsal.runs.outcome import Outcome

PARTLY = "static-p2p-dp2-distopt"
"""A case of which some tensors are not compared."""


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
    assert record["summary"] == {"exact": 35, "other": 1, "phase": 2} and not record["not_run"]
    assert all(row["phase"] and row["said"] for row in record["rows"])


def test_every_other_kind_is_in_the_record_with_its_verdict() -> None:
    record = read_record("rehearsal/results/kinds.json")
    rows = record["rows"]
    assert [row["name"] for row in rows] == [kind.name for kind in KINDS]
    assert record["summary"] == summary(rows) == {"control": 1, "exact": 14, "phase": 2}
    for row, kind in zip(rows, KINDS, strict=True):
        assert (row["breaks"], row["reported"]) == (kind.breaks, kind.reported)
        assert row["planted"] == kind.phase
        assert row["verdict"] == judged(row, kind.module), row["name"]
        assert row["transformer_engine"] == (kind.engine or "2.20.2")


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
    assert record["summary"] == summary(record["rows"])
    assert set(record["summary"]) <= {"agrees", "differs", "not run"}
    assert record["summary"]["agrees"] >= 53
    partly = {row["name"].partition(",")[0] for row in record["rows"] if row["left_out"]}
    assert PARTLY in partly and not [name for name in partly if "moe" in name]


def test_a_search_costs_what_the_page_says() -> None:
    record = read_record("rehearsal/results/cost.json")
    assert {row["name"] for row in record["rows"]} == set(COSTLY)
    for row in record["rows"]:
        took = row["plain_seconds"], row["located_seconds"], row["trace_bytes"]
        assert row["verdict"] == within(*took, left=False) == "within", row["name"]


@pytest.mark.parametrize(
    ("seconds", "written", "left", "verdict"),
    [
        (30.0, MOST_BYTES, False, "within"), (30.1, 0, False, "over"),
        (20.0, MOST_BYTES + 1, False, "over"), (20.0, 0, True, "over"),
    ],
)  # fmt: skip
def test_a_search_may_take_twice_the_run_and_leaves_nothing(
    seconds: float, written: int, left: bool, verdict: str
) -> None:
    assert within(10.0, seconds, written, left=left) == verdict


def test_every_fork_is_in_the_record() -> None:
    record = read_record("rehearsal/results/forks.json")
    for row, fork in zip(record["rows"], forks(), strict=True):
        assert (row["name"], row["planted"]) == (fork.name, fork.phase)
        assert (row["breaks"], row["against"]) == (fork.breaks, fork.against)
        assert row["verdict"] == judged(row, fork.module)
        # Of a defect with and without CP, the launch itself agrees with its reference.
        assert (row["exit"], row["headline"].endswith("and agrees.")) == (
            (0, True) if fork.against else (1, False)
        )
    assert record["summary"] == summary(record["rows"]) == {"exact": 3}


def test_the_forks_of_strangers_are_in_the_record() -> None:
    rows = read_record("rehearsal/results/forks.json")["strangers"]
    for row, fork in zip(rows, strangers(), strict=True):
        assert (row["name"], row["breaks"], row["planted"]) == (fork.name, fork.breaks, fork.phase)
        for one in (row["before"], row["after"]):
            assert one["verdict"] == judged({**one, "planted": fork.phase}, fork.module)
            assert one["exit"] == 1
    before, after = ([row[when] for row in rows] for when in ("before", "after"))
    assert summary(before) == {"exact": 2, "none": 2, "other": 1}
    assert summary(after) == {"exact": 4, "none": 1}
    assert [one for one in before if "not known" in one["headline"]]
    assert not [one for one in after if "not known" in one["headline"]]


@pytest.mark.parametrize(("reason", "verdict"), [
    (AGREES, "agrees"), (f"{AGREES}; not compared were {SHARDED}", "agrees"),
    ("the run with traces did not end well", "not run"),
])  # fmt: skip
def test_a_training_in_which_some_gradients_are_not_compared_agrees(
    reason: str, verdict: str
) -> None:
    pair = mock.Mock()
    assert clean_row(pair, WrongPlace(None, reason), 1.0)["verdict"] == verdict


def test_pairs_with_the_same_reference_share_its_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Upstream(tmp_path, "dev", tmp_path, "2.20.2", None)
    started, seen = list[tuple[str, ...]](), list[str]()

    def run(self: Locating, program: Program, folder: Path) -> Outcome:
        started.append(program.arguments)
        (folder / "trace-0.bin").write_bytes(" ".join(program.arguments).encode())
        return Outcome((), None, 0.0, 0, folder)

    def locate(
        start: Run, program: Program, other: Program, *_: object, **__: object
    ) -> WrongPlace:
        for one in (program, other):
            folder = tmp_path / f"place-{len(seen)}"
            if one is program:
                folder.mkdir()
            start(replace(one, trace=TraceRequest((1, 2))), folder)
            seen.append((folder / "trace-0.bin").read_text())
            shutil.rmtree(folder)
        return WrongPlace(None, AGREES)

    monkeypatch.setattr(Locating, "run", run)
    monkeypatch.setattr(located, "locate", locate)
    locating = Locating(mock.Mock(), tmp_path, 1.0)
    runs = ("--a 1 --context-parallel-size 2", "--a 1 --b", "--a 2")
    references = ("--a 1 --context-parallel-size 1", "--a 1", "--a 2 --context-parallel-size 2")
    for words in zip(runs, references, strict=True):
        pair = [Program(upstream, "gpt.py", tuple(one.split()), 1) for one in words]
        assert locating.clean(Pair("one", "static", *pair))["verdict"] == "agrees"
    assert [" ".join(one) for one in started] == [
        *runs[:1],
        references[0],
        *runs[1:],
        references[2],
    ]
    assert seen == [runs[0], references[0], runs[1], references[0], runs[2], references[2]]


def test_each_seed_is_another_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has the weights and lengths of the case as ``conform`` runs it."""
    torch = pytest.importorskip("torch")
    weights = pytest.importorskip("ringproof.rehearsal.rank.weights")
    upstream = Upstream(tmp_path, "dev", tmp_path, "2.20.2", None)
    case = next(case for case in CASES if case.data == "varlen")
    part = mock.Mock(key="weight", global_shape=(4,), global_offset=(0,), data=torch.zeros(4))
    lengths, drawn = set[str](), set[tuple[float, ...]]()
    for number in SEEDS:
        made = seeded(training(upstream, case, "gpt.py", 2, tmp_path), number)
        lengths |= {word for word in made.arguments if "mean_seq_len" in word}
        with monkeypatch.context() as patch:
            patch.setattr(weights, "_local", weights._local)
            for fault in made.faults:
                module, _, name = fault.partition(":")
                getattr(importlib.import_module(module), name)()
            drawn.add(tuple(weights._local(part).tolist()))
        assert made.arguments[-2:] == ("--seed", str(number))
    assert len(lengths) == len(drawn) == len(SEEDS)
    assert tuple(weights._local(part).tolist()) in drawn


@pytest.mark.parametrize(
    ("phase", "named", "module", "verdict"),
    [
        ("forward", "a.b", r"a\.b", "exact"),
        ("forward", "a.c", r"a\.b", "near"),
        ("backward", "a.b", r"a\.b", "near"),
        ("backward", "a.c", r"a\.b", "other"),
        ("backward", "a.c", ".*", "other"),
        ("forward", "a.c", ".*", "phase"),
        ("", "", ".*", "none"),
    ],
)
def test_a_verdict_needs_phase_and_module(
    phase: str, named: str, module: str, verdict: str
) -> None:
    assert judged({"phase": phase, "planted": "forward", "module": named}, module) == verdict


def test_nothing_named_is_right_only_where_nothing_is_planted() -> None:
    nothing = {"phase": "", "module": ""}
    assert judged(nothing | {"planted": ""}, "") == "control"
    assert judged(nothing | {"planted": "forward"}, "") == "none"
    assert judged({"phase": "forward", "module": "a", "planted": ""}, "") == "other"


def test_changes_with_a_number_on_either_side_keep_their_values() -> None:
    changes = [
        {"what": "seq_length", "before": "4096", "after": "128"},
        {"what": "hidden_size", "before": "null", "after": "64"},
        {"what": "fusion", "before": "True", "after": "False"},
    ]
    numbers = {"seq_length": "4096 to 128", "hidden_size": "null to 64"}
    assert split_changes(changes) == (numbers, ["fusion"])


@pytest.mark.parametrize(
    "path",
    sorted((BENCHMARKS / "rehearsal" / "results").glob("*.json")),
    ids=lambda path: path.stem,
)
def test_no_record_names_a_folder_of_one_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not any(part in text for part in ("/root/", "/home/", "/tmp/", ".cache"))


def test_launches_of_frameworks_are_in_the_record_with_their_verdicts() -> None:
    record = read_record("rehearsal/results/traced.json")
    assert [row["name"] for row in record["rows"]] == [row.name for row in traced.ROWS]
    for row, one in zip(record["rows"], traced.ROWS, strict=True):
        assert (row["planted"], row["breaks"]) == (one.phase, one.breaks)
        assert row["verdict"] == traced.verdict_of(one, row), one.name
        if one.words:
            took = row["plain_cpu_seconds"], row["traced_cpu_seconds"], row["trace_bytes"]
            assert within(*took, left=False) == "within", one.name
    assert record["summary"] == summary(record["rows"])
    assert set(record["summary"]) <= {"agrees", "exact", "phase"}


def test_a_framework_that_agrees_is_no_alarm_and_one_that_was_not_compared_is_one() -> None:
    row = traced.TracedRow("verl-ppo-cp2", "verl")
    found = {"phase": "", "module": "", "said": f"not located: {AGREES}", "compared": 9}
    assert traced.verdict_of(row, found) == "agrees"
    for changed in ({"compared": 0}, {"said": "output_layer is wrong"}):
        assert traced.verdict_of(row, found | changed) == "alarm"
    wrong = replace(row, phase="forward", module="a|b")
    assert traced.verdict_of(wrong, found | {"phase": "forward", "module": "b"}) == "exact"
    assert traced.verdict_of(wrong, found) == "none"
