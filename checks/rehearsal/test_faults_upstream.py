"""Upstream's own defects, as docs/upstream-defects.md describes them; a mended one fails here."""

from __future__ import annotations

from typing import Any

import pytest

from ringproof.rehearsal.faults import trials
from ringproof.rehearsal.faults.programs import DEFECTS, SCRIPT, Defect
from ringproof.rehearsal.fixtures import Stage
from ringproof.rehearsal.program import Program

CASES = "checks.rehearsal.fault_cases"


def test_hierarchical_groups_outlive_their_world(stage: Stage) -> None:
    found = stage.call(f"{CASES}:destroyed_groups", 4)
    assert {entry["after"] for entry in found} == {True}
    assert {entry["plain_group_kept"] for entry in found} == {False}  # negative control


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_defect(stage: Stage, defect: Any) -> None:
    upstream = stage.upstream("NVIDIA/Megatron-LM@dev")
    run = stage.run(Program(upstream, SCRIPT, defect.arguments, defect.ranks))
    if defect.message:
        assert run.failure is not None
        assert defect.message in run.failure.message
        return
    assert run.failure is None
    if defect.path:
        calls = {call.comm_type for report in run.ranks for call in report.attention}
        assert calls - {"none"} == {defect.path}
    if defect.expected:
        _differs(stage, defect, run)


def _differs(stage: Stage, defect: Defect, run: Any) -> None:
    upstream = stage.upstream("NVIDIA/Megatron-LM@dev")
    expected = stage.run(Program(upstream, SCRIPT, defect.expected, 1))
    assert trials.compare(run, expected).by == "norm"
    assert trials.largest(run, expected)["norm"] > 1e-5
