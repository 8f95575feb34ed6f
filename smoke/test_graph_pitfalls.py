"""Pitfalls of graphs under Dynamic CP that need several ranks; the others: checks/graphs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from checks.graphs.captures import equal, graph, results, tensor
from ringproof.cluster import Cluster, RankContext, RankFailure
from ringproof.errors import InputError
from ringproof.reference.attention.attention import context_parallel_attention
from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import dynamic_groups
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training.agreement import refuse_together

SOON = 15.0
"""Seconds; the default limit of a process group is minutes."""
HUNG_AFTER_SECONDS = 6.0
"""By then every stage waits, also on a busy machine."""
ROWS = 16
"""Rows of each rank at every size."""


def _attention(group: dist.ProcessGroup) -> Callable[..., torch.Tensor]:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return context_parallel_attention(q, k, v, comm_type="p2p", group=group)[0]

    return function


def _inputs(rank: RankContext, seed: int) -> list[torch.Tensor]:
    return [tensor(1, ROWS, 2, 8, seed=100 * rank.rank + seed + i, grad=True) for i in range(3)]


def group_of_the_capture(rank: RankContext) -> dict[str, bool]:
    """Each rank replays a microbatch of its own; shapes fit both entries.

    Returns:
        Whether a replay equals eager, with the entry of the microbatch's size and with that of the
        static one; whether what the latter gives is finite.
    """
    with (
        parallel_context(RankLayout(cp=2)) as context,
        dynamic_groups(context, (1, 2), comm_type="p2p", ranks_per_node=2) as groups,
    ):
        own = _attention(groups.group(1).flat)
        static = _attention(groups.group(2).flat)
        bank = {
            size: graph(function, *_inputs(rank, 0)) for size, function in ((2, static), (1, own))
        }
        given = _inputs(rank, 10)
        wanted = results(own, given)
        found = results(bank[2], given)
        return {
            "own size": equal(results(bank[1], given), wanted),
            "static size": equal(found, wanted),
            "static size is finite": all(bool(one.isfinite().all()) for one in found),
        }


def _stage(rank: RankContext, *, reads: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """A pipeline stage; the last one asks the device for a number."""

    def function(x: torch.Tensor) -> torch.Tensor:
        hidden = x.exp()
        if reads and rank.rank == rank.world_size - 1:
            return hidden * hidden.sum().item()
        return hidden

    return function


def capture_of_stages(rank: RankContext, *, way: str) -> float:
    """Every stage captures two sizes, with a barrier in between, as upstream's bank does.

    Args:
        rank: A stage.
        way: ``sound``; ``raises`` (the last stage's capture is refused), ``goes on eager`` (it is,
            and that stage alone goes on without graphs) or ``together`` (all of them do).

    Returns:
        What a step computes.
    """
    function = _stage(rank, reads=way != "sound")
    found: Any = function
    try:
        for size in (2, 1):
            found = _captured(function, size, together=way == "together")
            dist.barrier()
    except InputError:
        if way == "raises":
            raise
        found = function
    output = found(tensor(3, seed=7))
    return float(output.sum()) + _from_next(rank)


def _captured(function: Callable[..., Any], size: int, *, together: bool) -> Any:
    def capture() -> Any:
        one = Capture(name=f"stage, CP size {size}", function=function, inputs=(tensor(3),))
        return TapeBackend().capture([one])[0]

    return refuse_together(capture) if together else capture()


def _from_next(rank: RankContext) -> float:
    """The gradient that a stage waits for comes from the next one."""
    number = torch.tensor([1.0])
    if rank.rank:
        dist.send(number, rank.rank - 1)
    if rank.rank < rank.world_size - 1:
        dist.recv(number, rank.rank + 1)
    return float(number)


def test_the_group_of_the_capture_is_replayed(cpu_cluster: Cluster) -> None:
    """An entry of the static size computes a microbatch of another, wrong and without a word."""
    outcome = cpu_cluster.run(group_of_the_capture, world_size=2)
    assert [value["own size"] for value in outcome.values] == [True, True]
    assert [value["static size is finite"] for value in outcome.values] == [True, True]
    assert not any(value["static size"] for value in outcome.values)


@pytest.mark.parametrize("way", ["sound", "together"])
def test_stages_that_refuse_together_go_on(cpu_cluster: Cluster, way: str) -> None:
    """The same exception on every stage, so all of them run eager and none waits."""
    outcome = cpu_cluster.run(capture_of_stages, world_size=3, way=way)
    assert (outcome.values[2] != outcome.values[1]) == (way == "together")


def failure(cluster: Cluster, way: str, **options: float) -> RankFailure:
    """Of a capture, reported soon: by the ranks' exceptions or because they stand still."""
    cluster.run(capture_of_stages, world_size=3, way="sound")  # imports are done
    started = time.monotonic()
    with pytest.raises(RankFailure) as caught:
        cluster.run(capture_of_stages, world_size=3, way=way, **options)
    assert time.monotonic() - started < SOON
    return caught.value


def test_a_capture_that_one_stage_cannot_do_is_reported_by_rank(cpu_cluster: Cluster) -> None:
    found = failure(cpu_cluster, "raises")
    assert found.rank == 2
    assert re.search(
        r"stage, CP size 2, forward: \.item\(\) at smoke/test_graph_pitfalls.py:\d+: "
        "the host reads a value, which synchronises the device during capture",
        found.reason,
    )


@pytest.mark.slow  # it waits until the ranks are taken for hung
def test_a_stage_that_goes_on_eager_alone_is_a_deadlock(cpu_cluster: Cluster) -> None:
    """The others stay in the barrier between two sizes, and it waits for them in the next step."""
    found = failure(cpu_cluster, "goes on eager", timeout_seconds=HUNG_AFTER_SECONDS)
    said, _, stack = str(found).partition("\n")
    assert re.search(r"rank 0 failed first: not finished after 6 s, at \S+ in barrier; every", said)
    assert re.search(
        r"rank waits for another \(rank 1 at \S+ in barrier; rank 2 at \S+ in send", said
    )
    assert re.search(r'graph_pitfalls.py", line \d+ in capture_of_stages', stack)
