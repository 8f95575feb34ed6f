"""The file of ``ringproof smoke megatron --slurm``, run by Slurm on one node and on two."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ringproof.rehearsal.fixtures import SessionServers
from smoke.hosts.network import two_hosts
from smoke.slurm.cluster import Node, missing, nodes_of, running_cluster, submit, this_machine
from smoke.test_smoke_command import CARDS, UPSTREAMS, load_card, named, smoke

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RANKS = 4
LEVEL = "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0"

Slurm = tuple[Sequence[Node], Mapping[str, str]]


@pytest.fixture(scope="module", params=[1, 2], ids=["one-node", "two-nodes"])
def slurm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slurm]:
    """The nodes of a cluster, and the environment in which Slurm's commands reach it."""
    if missing():
        pytest.skip(missing())
    if request.param == 1:
        with running_cluster(this_machine()) as environment:
            yield this_machine(), environment
        return
    try:
        with two_hosts() as hosts:
            nodes = nodes_of(hosts, tmp_path_factory.mktemp("nodes"))
            with running_cluster(nodes) as environment:
                yield nodes, environment
    except PermissionError as error:
        pytest.skip(str(error))


def test_the_sbatch_file_runs_under_slurm(
    slurm: Slurm, stage: SessionServers, tmp_path: Path
) -> None:
    """Its log has the groups of both programs, and the verdict."""
    nodes, environment = slurm
    skill, megatron, _ = UPSTREAMS["hcp"]
    upstream = stage.upstream(named(load_card(CARDS / skill / "card.yaml"), megatron))
    job, log = tmp_path / "job.sh", tmp_path / "job.out"
    given = ("--upstream", str(upstream.megatron), "--te", str(upstream.engine), "--feature", "hcp")
    size = (
        "--ranks-per-node",
        str(RANKS // len(nodes)),
        "--nodes",
        str(len(nodes)),
        "--steps",
        "3",
    )
    words = (*given, *size, "--steps", "3", "--device", "cpu", "--out", str(tmp_path / "logs"))
    done = smoke(*words, "--record", str(tmp_path), "--slurm", str(job))
    assert done.exit_code == 0, done.output
    assert submit(job, log, nodes[0], environment) == 0, log.read_text()[-3000:]
    text = log.read_text()
    assert "feature on: exit code 0" in text and "feature off: exit code 0" in text
    assert f"{LEVEL}: 2 of size 2; ranks 0-1" in text
    assert "passed" in text.splitlines()
    (path,) = tmp_path.glob("*/smoke-hcp.json")
    record = json.loads(path.read_text())
    assert (record["scheduler"], record["nodes"]) == ("slurm", len(nodes))


def test_each_node_has_a_name_of_its_own(slurm: Slurm, tmp_path: Path) -> None:
    nodes, environment = slurm
    job, log = tmp_path / "job.sh", tmp_path / "job.out"
    job.write_text(f"#!/bin/bash\n#SBATCH --nodes={len(nodes)}\nsrun hostname -s\n")
    assert submit(job, log, nodes[0], environment) == 0
    assert sorted(log.read_text().split()) == [node.name for node in nodes]


def test_a_job_that_fails_is_seen(slurm: Slurm, tmp_path: Path) -> None:
    nodes, environment = slurm
    job, log = tmp_path / "job.sh", tmp_path / "job.out"
    job.write_text("#!/bin/bash\nsrun false\n")
    assert submit(job, log, nodes[0], environment) == 1
