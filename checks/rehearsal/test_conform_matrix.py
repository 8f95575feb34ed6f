"""Each case of the matrix on a checkout, as a test of its own: the verdict is the recorded one.

Needs ``--ringproof-upstream NVIDIA/Megatron-LM=git:PATH``; a single case is
``-k dynamic-cp-mamba``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.rehearsal.conform import cases
from ringproof.rehearsal.conform import record as records
from ringproof.rehearsal.conform.cases import Case
from ringproof.rehearsal.conform.matrix import Matrix
from ringproof.rehearsal.fixtures import SessionServers

REF = "d48bd6be0a"
STEPS = 5
(RECORDED,) = (one.by_id for one in records.shipped() if one.name == f"dev {REF}")


@pytest.fixture(scope="session")
def matrix(stage: SessionServers, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """The matrix on Megatron's dev branch."""
    upstream = stage.upstream(f"NVIDIA/Megatron-LM@{REF}")
    return Matrix(
        upstream,
        tmp_path_factory.mktemp("conform"),
        lambda program, preload, _: stage.run(program, preload=preload),
        STEPS,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "case", [case for case in cases.CASES if case.id in RECORDED], ids=lambda case: case.id
)
def test_case(matrix: Matrix, case: Case, tmp_path: Path) -> None:
    found = matrix.run(case)
    assert found.status is RECORDED[case.id].status, found
