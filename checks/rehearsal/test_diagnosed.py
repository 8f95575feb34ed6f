"""``logs diagnose`` on the logs of upstream's own program, which fails in the rehearsal.

Needs ``--ringproof-upstream NVIDIA/Megatron-LM=git:PATH``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.logs.diagnosis.cause import Diagnosis, diagnose
from ringproof.logs.rendering import names
from ringproof.rehearsal.conform import cases
from ringproof.rehearsal.conform.matrix import Matrix
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Program
from ringproof.rehearsal.runs.outcome import Outcome

MAIN = "NVIDIA/Megatron-LM@main"
DEV = "NVIDIA/Megatron-LM@dev"
RELEASE = "pip:megatron-core==0.16.1"


def report_of(stage: SessionServers, megatron: str, case: str, folder: Path) -> Diagnosis:
    """Run a case of the matrix, and diagnose the logs of its ranks."""
    outcomes: list[Outcome] = []

    def run(program: Program, preload: str | None, _: object) -> Outcome:
        outcomes.append(stage.run(program, preload=preload))
        return outcomes[-1]

    Matrix(stage.upstream(megatron), folder, run, 2).run(*cases.chosen([case]))
    logs = outcomes[0].folder.glob("rank-*.log")
    return diagnose(sorted(map(str, logs)))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("megatron", "case", "expected"),
    [
        (MAIN, "hybrid-cp-default-rerun", ("rerun-iterator", "ranks 0-1", "")),
        (MAIN, "hybrid-cp-2", ("batch-schema", "ranks 0-1", "")),
        (MAIN, "hybrid-cp-pp2", ("pipeline-refused", "ranks 0-3", "")),
        (MAIN, "static-hcp-without-sizes", ("sizes-missing", "ranks 0-3", "")),
        (DEV, "dynamic-cp-hcp-2x2", ("one-group-for-two", "ranks 0-3", "")),
        (DEV, "dynamic-cp-6", ("no-group-of-size", "ranks 0-3", "ranks 4-5")),
        (DEV, "dynamic-cp-pp2-vpp2", ("too-few-sequences", "ranks 0-3", "")),
        (DEV, "dynamic-cp-megatron-fsdp", ("fsdp-refused", "ranks 0-1", "")),
        (DEV, "hybrid-cp-2", ("packing-batch", "ranks 0-1", "")),
        (RELEASE, "hybrid-cp-2", ("no-stream", "ranks 0-1", "")),
        (RELEASE, "hybrid-cp-mla", ("latent-attention", "ranks 0-1", "")),
        (RELEASE, "hybrid-cp-4-of-cp2", ("rope-index", "ranks 2-3", "ranks 0-1")),
        (RELEASE, "static-p2p-window", ("no-attention-backend", "ranks 0-1", "")),
        (DEV, "dynamic-cp-4", ("nothing", "", "")),
    ],
)
def test_a_failure_of_upstream_is_diagnosed(
    stage: SessionServers, tmp_path: Path, megatron: str, case: str, expected: tuple[str, str, str]
) -> None:
    symptom, ranks, lost = expected
    report = report_of(stage, megatron, case, tmp_path)
    cause = report.cause
    if symptom == "nothing":
        assert not report.found
        return
    assert cause is not None
    assert cause.symptom is not None
    assert (cause.symptom.id, names(cause.who)) == (symptom, ranks)
    assert [names(one.who) for one in report.follow_ups] == ([lost] if lost else [])
