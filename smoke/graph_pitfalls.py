"""What the ranks run in the tests of pitfalls that need more than one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from checks.graphs.captures import equal, graph, results, tensor
from ringproof.cluster import RankContext
from ringproof.errors import InputError
from ringproof.reference.attention.attention import context_parallel_attention
from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.tape.backend import TapeBackend
from ringproof.reference.model.static import load, static_batch
from ringproof.reference.packing.sequences import Capacity
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import ContextParallelGroup, dynamic_groups
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training.agreement import refuse_together
from smoke.model_batches import capacity_batch, random_sequences

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


def _microbatch(lengths: tuple[int, ...], group: ContextParallelGroup) -> Any:
    capacity = Capacity(rows=ROWS * group.size, entries=4)
    return capacity_batch(random_sequences(lengths), group, capacity, multiple=4)


def refused_groups(rank: RankContext) -> dict[str, str]:
    """What is said of a microbatch of another size, and of a new group of the same ranks."""
    said = {}
    with (
        parallel_context(RankLayout(cp=2)) as context,
        dynamic_groups(context, (1, 2), comm_type="p2p", ranks_per_node=2) as groups,
    ):
        static = static_batch(_microbatch((5, 7), groups.group(2)))
        twin = ContextParallelGroup(flat=dist.new_group([0, 1]))
        for name, group in (("same", groups.group(2)), ("own", groups.group(1)), ("twin", twin)):
            try:
                load(static, _microbatch((6, 2), group))
                said[name] = ""
            except InputError as error:
                said[name] = str(error)
        dist.destroy_process_group(twin.flat)
    return said


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
