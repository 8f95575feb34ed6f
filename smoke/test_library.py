"""Megatron-core's library trains the same with context parallelism as on one rank."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ringproof.rehearsal.conform import cases
from ringproof.rehearsal.conform.result import Status
from ringproof.rehearsal.conform.running import Matrix
from ringproof.rehearsal.fixtures import Stage
from ringproof.rehearsal.program import Program
from ringproof.rehearsal.running import Outcome

FAULTS = "smoke.library_faults"
EXACT = 1e-10
STEPS = 3


@pytest.fixture(scope="session")
def wide(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """The matrix on megatron-core 0.16.1 in float64."""
    return _matrix(stage, tmp_path_factory.mktemp("float64"), "float64")


def _matrix(stage: Stage, folder: Path, dtype: str, *faults: str) -> Matrix:
    def run(program: Program, preload: str, _: Path) -> Outcome:
        planted = faults if program.ranks > 1 else ()
        program = dataclasses.replace(program, faults=(*program.faults, *planted))
        return stage.run(program, preload=preload)

    return Matrix(stage.upstream(), folder, run, STEPS, dtype=dtype)


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("static-hcp-2x2", "static-p2p-tp2-sp", "sft-a2a-cp2")
]


@pytest.mark.parametrize("name", ["static-p2p-cp2", *SLOW])
def test_exact_in_float64(wide: Matrix, name: str) -> None:
    (case,) = cases.chosen([name])
    result = wide.run(dataclasses.replace(case, tolerance=EXACT))
    assert result.status is Status.AGREES, result
    assert result.iterations == STEPS


def test_interleaved_outputs_are_released_while_they_are_sent(wide: Matrix) -> None:
    """Megatron-LM pull request 4047 mends this for 0.18: NaN gradient norms on GB200."""
    (case,) = cases.chosen(["static-p2p-pp2-vpp2"])
    result = wide.run(dataclasses.replace(case, tolerance=EXACT))
    assert result.status is Status.RACES, result
    assert "was released before the wait" in result.message
    assert "pipeline_parallel/schedules.py" in result.message


def test_interleaved_outputs_that_are_kept_do_not_race(stage: Stage, tmp_path: Path) -> None:
    matrix = _matrix(stage, tmp_path, "float64", f"{FAULTS}:kept_outputs")
    (case,) = cases.chosen(["static-p2p-pp2-vpp2"])
    result = matrix.run(dataclasses.replace(case, tolerance=EXACT))
    assert result.status is Status.AGREES, result


def test_hybrid_cp_of_the_release_has_no_stream(wide: Matrix) -> None:
    result = wide.run(*cases.chosen(["hybrid-cp-2"]))
    assert result.status is Status.REFUSED, result
    assert "wait_event" in result.message and "context_parallel.py" in result.place, result


def test_a_planted_defect_differs(stage: Stage, tmp_path: Path) -> None:
    matrix = _matrix(stage, tmp_path, "float64", f"{FAULTS}:contiguous_shards")
    (case,) = cases.chosen(["static-p2p-cp2"])
    result = matrix.run(dataclasses.replace(case, tolerance=EXACT))
    assert result.status is Status.DIFFERS, result
    assert result.since == 1
