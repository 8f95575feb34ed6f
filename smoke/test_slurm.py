"""The file of ``ringproof smoke megatron --slurm``, run by Slurm on a cluster of one node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ringproof.rehearsal.fixtures import Stage
from smoke.slurm.cluster import missing, one_node, submit
from smoke.test_smoke_command import CARDS, RANKS, UPSTREAMS, load_card, named, smoke

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Mapping[str, str]]:
    if missing():
        pytest.skip(missing())
    with one_node() as environment:
        yield environment


def test_the_sbatch_file_runs_under_slurm(slurm, stage: Stage, tmp_path: Path) -> None:
    """Its log has the groups of both programs, and the verdict."""
    skill, megatron, _ = UPSTREAMS["hcp"]
    upstream = stage.upstream(named(load_card(CARDS / skill / "card.yaml"), megatron))
    job, log = tmp_path / "job.sh", tmp_path / "job.out"
    given = ("--repo", str(upstream.megatron), "--te", str(upstream.engine), "--feature", "hcp")
    words = (*given, "--device", "cpu", "--steps", "3", "--out", str(tmp_path / "logs"))
    done = smoke(*words, "--record", str(tmp_path), "--slurm", str(job))
    assert done.exit_code == 0, done.output
    assert submit(job, log, slurm) == 0, log.read_text()[-3000:]
    text = log.read_text()
    assert "feature on: exit code 0" in text and "feature off: exit code 0" in text
    assert f"HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0: 2 of size {RANKS // 2}" in text
    assert text.rstrip().endswith("passed")
    (record,) = tmp_path.glob("*/smoke-hcp.json")
    assert json.loads(record.read_text())["scheduler"] == "slurm"


def test_a_job_that_fails_is_seen(slurm, tmp_path: Path) -> None:
    job, log = tmp_path / "job.sh", tmp_path / "job.out"
    job.write_text("#!/bin/bash\nsrun false\n")
    assert submit(job, log, slurm) == 1
