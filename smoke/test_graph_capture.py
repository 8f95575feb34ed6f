"""Communication inside of a captured graph: replays equal the eager computation, bit by bit.

On a CPU the tape over gloo; where the ranks have a GPU each, CUDA graphs over NCCL.
"""

from __future__ import annotations

import pytest

from ringproof.errors import InputError
from ringproof.harness.cluster import Cluster
from smoke import graph_cases


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a"])
def test_attention(comm_type: str, world_size: int, cluster: Cluster) -> None:
    outcome = cluster.run(graph_cases.attention, world_size=world_size, comm_type=comm_type)
    assert outcome.values == ({"replay 10": True, "replay 20": True},) * world_size


def test_hierarchical_attention(cluster: Cluster) -> None:
    outcome = cluster.run(graph_cases.attention, world_size=4, comm_type="a2a+p2p")
    assert outcome.values == ({"replay 10": True, "replay 20": True},) * 4


@pytest.mark.parametrize(
    ("comm_type", "lost"), [("all_gather", "c10d::_allgather_base_"), ("p2p", "aten::add_.Tensor")]
)
def test_a_lost_operation_is_seen(comm_type: str, lost: str, cpu_cluster: Cluster) -> None:
    outcome = cpu_cluster.run(graph_cases.attention, world_size=2, comm_type=comm_type, lost=lost)
    assert not any(value["replay 10"] for value in outcome.values)


@pytest.mark.parametrize(
    ("name", "tp", "size", "slots"),
    [
        ("qwen3-tiny", 2, 1, 1),
        ("qwen3-tiny", 1, 2, 2),
        ("moonlight-tiny", 2, 2, 1),
    ],
)
def test_layer(name: str, tp: int, size: int, slots: int, cluster: Cluster) -> None:
    outcome = cluster.run(graph_cases.layer, world_size=4, tp=tp, size=size, name=name, slots=slots)
    assert outcome.values == ({"replay 10": True, "replay 20": True, "counted": True},) * 4


@pytest.mark.parametrize("world_size", [2, 4])
def test_transfers_in_flight(world_size: int, cluster: Cluster) -> None:
    outcome = cluster.run(graph_cases.transfers_by_hand, world_size=world_size)
    assert outcome.values == ({"replay": True},) * world_size


def test_functional_collectives(cluster: Cluster) -> None:
    outcome = cluster.run(graph_cases.functional_collectives, world_size=2)
    assert outcome.values == ({"replay": True},) * 2


def test_a_barrier_is_refused(cpu_cluster: Cluster) -> None:
    with pytest.raises(InputError, match=r"part, forward: barrier at smoke/graph_cases.py:\d+: "):
        cpu_cluster.run(graph_cases.host_waits, world_size=2)
