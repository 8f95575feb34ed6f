"""Megatron-core's library trains the same with context parallelism as on one rank."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ringproof.rehearsal.conform import cases
from ringproof.rehearsal.conform.matrix import Matrix
from ringproof.rehearsal.conform.record import CaseResult, Status
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Program
from ringproof.rehearsal.runs.outcome import Outcome

pytestmark = pytest.mark.slow

FAULTS = "smoke.library_faults"
EXACT = 1e-10
STEPS = 2


@pytest.fixture(scope="session")
def wide(stage: SessionServers, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """The matrix on megatron-core 0.16.1 in float64; all tests share its references."""

    def run_wide(program: Program, preload: str, _: Path) -> Outcome:
        faults = (f"{FAULTS}:float64", *program.faults)
        return stage.run(dataclasses.replace(program, faults=faults), preload=preload)

    return Matrix(
        stage.upstream(),
        tmp_path_factory.mktemp("float64"),
        run_wide,
        STEPS,
        dtype="float64",
    )


def run(matrix: Matrix, name: str, *faults: str) -> CaseResult:
    """Run a case with half of its batch; one that agrees has to agree in float64."""
    (case,) = cases.chosen([name])
    case = dataclasses.replace(case, both=f"{case.both} --global-batch-size 4")
    result = matrix.run(case, faults)
    if result.status is Status.AGREES:
        assert result.largest_difference is not None and result.largest_difference < EXACT
    return result


@pytest.mark.parametrize(
    "name", ["static-p2p-cp2", "static-hcp-2x2", "static-p2p-tp2-sp", "sft-a2a-cp2"]
)
def test_exact_in_float64(wide: Matrix, name: str) -> None:
    result = run(wide, name)
    assert result.status is Status.AGREES, result
    assert result.iterations == STEPS


def test_interleaved_outputs_are_released_while_they_are_sent(wide: Matrix) -> None:
    """Megatron-LM pull request 4047 mends this for 0.18: NaN gradient norms on GB200."""
    result = run(wide, "static-p2p-pp2-vpp2")
    assert result.status is Status.RACES, result
    assert "was released before the wait" in result.message
    assert "pipeline_parallel/schedules.py" in result.message


def test_interleaved_outputs_that_are_kept_do_not_race(wide: Matrix) -> None:
    result = run(wide, "static-p2p-pp2-vpp2", f"{FAULTS}:kept_outputs")
    assert result.status is Status.AGREES, result


def test_hybrid_cp_of_the_release_has_no_stream(wide: Matrix) -> None:
    result = run(wide, "hybrid-cp-2")
    assert result.status is Status.REFUSED, result
    assert "wait_event" in result.message and "context_parallel.py" in result.place, result


def test_a_planted_defect_differs(wide: Matrix) -> None:
    result = run(wide, "static-p2p-cp2", f"{FAULTS}:contiguous_shards")
    assert result.status is Status.DIFFERS, result
    assert result.since == 1
