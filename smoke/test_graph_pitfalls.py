"""Pitfalls of graphs under Dynamic CP that need several ranks; the others: checks/graphs."""

from __future__ import annotations

import re
import time

import pytest

from ringproof.cluster import Cluster, RankFailure
from smoke import graph_pitfalls

SOON = 15.0
"""Seconds; the default limit of a process group is minutes."""
HUNG_AFTER_SECONDS = 6.0
"""By then every stage waits, also on a busy machine."""


def test_the_group_of_the_capture_is_replayed(cpu_cluster: Cluster) -> None:
    """An entry of the static size computes a microbatch of another, wrong and without a word."""
    outcome = cpu_cluster.run(graph_pitfalls.group_of_the_capture, world_size=2)
    assert [value["own size"] for value in outcome.values] == [True, True]
    assert [value["static size is finite"] for value in outcome.values] == [True, True]
    assert not any(value["static size"] for value in outcome.values)


@pytest.mark.parametrize("way", ["sound", "together"])
def test_stages_that_refuse_together_go_on(cpu_cluster: Cluster, way: str) -> None:
    """The same exception on every stage, so all of them run eager and none waits."""
    outcome = cpu_cluster.run(graph_pitfalls.capture_of_stages, world_size=3, way=way)
    assert (outcome.values[2] != outcome.values[1]) == (way == "together")


def failure(cluster: Cluster, way: str, **options: float) -> RankFailure:
    """Of a capture, reported soon: by the ranks' exceptions or because they stand still."""
    cluster.run(graph_pitfalls.capture_of_stages, world_size=3, way="sound")  # imports are done
    started = time.monotonic()
    with pytest.raises(RankFailure) as caught:
        cluster.run(graph_pitfalls.capture_of_stages, world_size=3, way=way, **options)
    assert time.monotonic() - started < SOON
    return caught.value


def test_a_capture_that_one_stage_cannot_do_is_reported_by_rank(cpu_cluster: Cluster) -> None:
    found = failure(cpu_cluster, "raises")
    assert found.rank == 2
    assert re.search(
        r"stage, CP size 2, forward: \.item\(\) at smoke/graph_pitfalls.py:\d+: the host reads a "
        "value, which synchronises the device during capture",
        found.reason,
    )


def test_a_stage_that_goes_on_eager_alone_is_a_deadlock(cpu_cluster: Cluster) -> None:
    """The others stay in the barrier between two sizes, and it waits for them in the next step."""
    found = failure(cpu_cluster, "goes on eager", timeout_seconds=HUNG_AFTER_SECONDS)
    said, _, stack = str(found).partition("\n")
    assert re.search(r"rank 0 failed first: not finished after 6 s, at \S+ in barrier; every", said)
    assert re.search(
        r"rank waits for another \(rank 1 at \S+ in barrier; rank 2 at \S+ in send", said
    )
    assert re.search(r'graph_pitfalls.py", line \d+ in capture_of_stages', stack)
