"""The rules from outcomes to verdicts, and from a machine to its environment class."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from ringproof.cards import Proof, ProofKind, Statement, StatementKind
from ringproof.prove import environment as machine
from ringproof.prove.environment import read_environment
from ringproof.prove.judging import judge
from ringproof.prove.results import Judged, ProofState, Verdict
from ringproof.prove.suite import SuiteResult
from ringproof.prove.touches import Evidence

TEST = Proof(ProofKind.PYTEST, "checks/t.py::test_x")


def _result(state: ProofState, kind: ProofKind = ProofKind.PYTEST) -> Judged:
    name = TEST.target if kind is ProofKind.PYTEST else f"{kind.value}:x"
    return Judged(name, state, state.value)


def _verdict(*proofs: Judged) -> str:
    statement = Statement("s", StatementKind.CLAIM, "says", (TEST,))
    return judge(statement, proofs).outcome


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (ProofState.PASSED, Verdict.PROVEN),
        (ProofState.FAILED, Verdict.REFUTED),
        (ProofState.MISSING, Verdict.REFUTED),
        (ProofState.SKIPPED, Verdict.NOT_HERE),
        (ProofState.LEFT_OUT, Verdict.NOT_HERE),
        (ProofState.NOT_RUN, Verdict.NOT_HERE),
        (ProofState.UNAVAILABLE, Verdict.NOT_HERE),
        (ProofState.DECLARED, Verdict.UNPROVEN),
    ],
)
def test_one_proof(state: ProofState, verdict: Verdict) -> None:
    assert _verdict(_result(state)) is verdict


def test_no_combination_is_proven_without_a_pass_or_with_a_failure() -> None:
    for first, second in itertools.product(ProofState, repeat=2):
        verdict = _verdict(_result(first), _result(second))
        states = {first, second}
        if states & {ProofState.FAILED, ProofState.MISSING}:
            assert verdict is Verdict.REFUTED
        assert (verdict is Verdict.PROVEN) == (states == {ProofState.PASSED})
        if ProofState.PASSED not in states or ProofState.NOT_RUN in states:
            assert verdict is not Verdict.PARTLY


def test_an_anchor_alone_does_not_carry_a_claim_about_behaviour() -> None:
    held = _result(ProofState.PASSED, ProofKind.ANCHOR)
    assert _verdict(held) is Verdict.PROVEN
    assert _verdict(held, _result(ProofState.SKIPPED)) is Verdict.NOT_HERE
    assert _verdict(held, _result(ProofState.PASSED)) is Verdict.PROVEN
    unavailable = _result(ProofState.UNAVAILABLE, ProofKind.ANCHOR)
    assert _verdict(unavailable, _result(ProofState.PASSED)) is Verdict.PARTLY


def _phase(node: str, when: str, outcome: str = "passed", **more: Any) -> dict[str, Any]:
    fields = {"seconds": 1.0, "detail": "", "expected_failure": False, "properties": []}
    return {"event": "phase", "id": node, "when": when, "outcome": outcome, **fields, **more}


def _suite(*events: Mapping[str, Any], ended: str = "pytest ended") -> SuiteResult:
    suite = SuiteResult()
    for event in events:
        suite.feed(json.dumps(dict(event)))
    suite.feed('{"event": "fini')
    suite.end(ended)
    return suite


SELECTED = MappingProxyType({"event": "selected", "ids": [TEST.target, "checks/t.py::test_y"]})


def _whole(node: str) -> list[dict[str, Any]]:
    start = {"event": "start", "id": node}
    phases = [_phase(node, when) for when in ("setup", "call", "teardown")]
    return [start, *phases, {"event": "finish", "id": node}]


def test_a_complete_log() -> None:
    events = [SELECTED, *_whole(TEST.target), *_whole("checks/t.py::test_y")]
    suite = _suite(*events, {"event": "end", "exit": 0})
    assert suite.incomplete == ""
    assert suite.tests[TEST.target].seconds == 3.0
    assert suite.result(TEST, own=Evidence.DERIVED).outcome is ProofState.PASSED


def test_a_log_that_stops_in_the_middle() -> None:
    suite = _suite(SELECTED, *_whole(TEST.target)[:-1], ended="killed")
    assert suite.incomplete == "killed"
    assert suite.tests[TEST.target].outcome is ProofState.FAILED, "passed so far is not passed"
    assert suite.tests["checks/t.py::test_y"].outcome is ProofState.NOT_RUN


def test_an_empty_log_is_not_run_rather_than_missing() -> None:
    suite = _suite(ended="usage error")
    result = suite.result(TEST, own=Evidence.DERIVED)
    assert result.outcome is ProofState.NOT_RUN
    assert "usage error" in result.detail
    ended = _suite({**SELECTED, "ids": []}, {"event": "end", "exit": 5})
    assert ended.result(TEST, own=Evidence.DERIVED).outcome is ProofState.MISSING


@pytest.mark.parametrize(
    ("torch", "gpus", "name"),
    [
        (None, (), "cpu"),
        ("2.13.0", (), "cpu-gloo"),
        ("2.13.0", ("NVIDIA H200",), "1xH200"),
        ("2.13.0", ("NVIDIA A100-SXM4-80GB",) * 8, "8xA100-SXM4-80GB"),
        ("2.13.0", ("NVIDIA H100", "NVIDIA H200", "NVIDIA H200"), "1xH100+2xH200"),
        ("2.13.0", ("NVIDIA ../../x",), "1x..-..-x"),
    ],
)
def test_environment_classes_are_folder_names(
    torch: str | None, gpus: tuple[str, ...], name: str
) -> None:
    assert machine._class_name(torch, gpus) == name
    assert "/" not in name


def test_the_environment_of_a_folder_outside_git(tmp_path: Path) -> None:
    found = read_environment(tmp_path)
    assert found.commit is None
    assert found.dirty is None
