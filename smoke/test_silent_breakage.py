"""What breaks silently in real trainings turns parity red, and the log check too."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.cluster import CaseOutcome, Cluster
from ringproof.reference.attention.case import ParityCase
from smoke import cases
from smoke.processes import log_verdict

EXPECT = ("--expect", "hierarchical")


def run(cluster: Cluster, fault: str, sizes: tuple[int, int] = (2, 4)) -> CaseOutcome:
    case = ParityCase(
        world=sizes[0] * sizes[1],
        comm_type="a2a+p2p",
        hierarchical_sizes=sizes,
        seq_len=128,
        heads=8,
        kv_heads=4,
    )
    return cluster.run(cases.broken_parity, world_size=case.world, case=case, fault=fault)


def test_nothing_broken_is_green(cluster: Cluster, tmp_path: Path) -> None:
    outcome = run(cluster, "none")
    found = log_verdict(tmp_path, outcome.log_text(), *EXPECT, "--hcp", "2,4")
    assert outcome.values[0]["pass"]
    assert found.verdict == "hierarchical"
    assert found.report["proof"] == "traffic"
    assert found.exit_code == 0


def test_communication_off_is_caught(cluster: Cluster, tmp_path: Path) -> None:
    """Each rank attends to its own chunk: the groups exist, so only traffic tells."""
    outcome = run(cluster, "communication-off")
    found = log_verdict(tmp_path, outcome.log_text(), *EXPECT)
    assert not outcome.values[0]["pass"]
    assert min(outcome.values[0]["max_abs_error"].values()) > 1e-3
    assert found.verdict == "none"
    assert found.exit_code == 1


@pytest.mark.parametrize("sizes", [(2, 4), (2, 2)])
def test_swapped_levels_are_caught(
    cluster: Cluster, tmp_path: Path, sizes: tuple[int, int]
) -> None:
    """The all-to-all on the strided level and the ring on the consecutive one."""
    outcome = run(cluster, "swapped-levels", sizes)
    found = log_verdict(tmp_path, outcome.log_text(), *EXPECT, "--hcp", ",".join(map(str, sizes)))
    assert not outcome.values[0]["pass"]
    assert min(outcome.values[0]["max_abs_error"].values()) > 1e-3
    assert found.exit_code == 1


def test_swapped_sizes_are_caught_in_the_log(cluster: Cluster, tmp_path: Path) -> None:
    """[4, 2] where [2, 4] was meant computes the right thing on the wrong wires."""
    outcome = run(cluster, "none", (4, 2))
    found = log_verdict(tmp_path, outcome.log_text(), *EXPECT, "--hcp", "2,4")
    assert outcome.values[0]["pass"]
    assert found.verdict == "hierarchical"
    assert found.exit_code == 1
