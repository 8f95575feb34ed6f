"""``ringproof logs groups --dynamic`` on what real ranks print of their dynamic groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.cluster import Cluster
from ringproof.reference.topology.layout import RankLayout
from smoke import routing_cases
from smoke.processes import log_verdict


def printed(cluster: Cluster, layout: RankLayout, sizes: tuple[int, ...], comm_type: str) -> str:
    outcome = cluster.run(
        routing_cases.list_groups,
        world_size=layout.world_size,
        layout=layout,
        sizes=sizes,
        comm_type=comm_type,
        per_node=2,
    )
    return outcome.log_text()


@pytest.mark.parametrize("comm_type", ["p2p", "a2a+p2p"])
def test_the_groups_of_the_trainer_are_as_expected(
    cluster: Cluster, tmp_path: Path, comm_type: str
) -> None:
    """Tensor parallel ranks apart, so that a domain is no run of the world's ranks."""
    log = printed(cluster, RankLayout(tp=2, cp=2, dp=2), (1, 2), comm_type)
    found = log_verdict(tmp_path, log, "--dynamic", "1,2,4")
    assert found.exit_code == 0, found.report["findings"]
    assert found.report["expected_dynamic_sizes"] == [1, 2, 4]
    found = log_verdict(tmp_path, log, "--dynamic", "1,4")
    assert found.exit_code == 1
    assert found.report["findings"] == [
        "there are dynamic groups of 2 ranks, which were not expected"
    ]


def test_static_groups_alone_are_not_what_was_expected(cluster: Cluster, tmp_path: Path) -> None:
    log = printed(cluster, RankLayout(cp=4), (4,), "p2p")
    found = log_verdict(tmp_path, log, "--dynamic", "1,2,4")
    assert found.exit_code == 1
    assert len(found.report["findings"]) == 2, "only the whole domain is there"
