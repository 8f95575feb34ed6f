"""Communication inside of a captured graph: replays equal the eager computation, bit by bit.

On a CPU the tape over gloo; on GPUs CUDA graphs over NCCL.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from checks.graphs.captures import equal, results, tensor
from checks.model.whole_model import whole
from ringproof.cluster import Cluster, RankContext
from ringproof.errors import InputError
from ringproof.reference.attention.attention import (
    AttentionOptions,
    context_parallel_attention,
    planned_attention,
)
from ringproof.reference.attention.communicator import Communicator, wait
from ringproof.reference.attention.plan import GroupRows, plan_attention
from ringproof.reference.graphs.backend import Capture, CaptureBackend
from ringproof.reference.graphs.tape.backend import choose_backend
from ringproof.reference.model.config import preset
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import dynamic_groups
from ringproof.reference.topology.layout import RankLayout
from smoke.conftest import needs_gpu
from smoke.model_batches import random_sequences, rank_batch

TENSOR_PARALLEL = "TENSOR_MODEL_PARALLEL_GROUP"
Verdict = dict[str, bool]


def attention(rank: RankContext, *, comm_type: str, lost: str = "") -> Verdict:
    """Attention over all ranks, forward and backward, for values that the capture never saw.

    Operations of the name ``lost`` are taken out of the tape, on all ranks.
    """
    size = rank.world_size
    groups: Any = dist.group.WORLD
    if comm_type == "a2a+p2p":
        mine = dist.new_subgroups(size // 2)[0] if size > 2 else None
        pairs = [dist.new_group([i, i + size // 2]) for i in range(size // 2)]
        groups = (mine, pairs[rank.rank % (size // 2)])

    # Made before the capture: a plan copies row numbers to the device.
    rows = GroupRows(rows=8)
    plan = plan_attention(rows, comm_type=comm_type, group=groups, device=rank.device)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return planned_attention(q, k, v, plan, AttentionOptions())

    def inputs(seed: int) -> list[torch.Tensor]:
        draws = [tensor(1, 8, 4, 6, seed=100 * rank.rank + seed + i) for i in range(3)]
        return [draw.to(rank.device).requires_grad_() for draw in draws]

    backend = choose_backend("auto", rank.device)
    (graphed,) = backend.capture(
        [Capture(name="attention", function=function, inputs=tuple(inputs(0)))]
    )
    for segment in vars(graphed)["_segments"] if lost else ():
        kept = [one for one in segment.operations if one.function.name() != lost]
        segment.operations = tuple(kept)
    return {f"replay {seed}": _same(graphed, function, inputs(seed)) for seed in (10, 20)}


def plans_inside(rank: RankContext) -> None:
    """Attention whose plan is made in the capture: it copies row numbers to the device."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return context_parallel_attention(x, x, x, comm_type="a2a", group=dist.group.WORLD)[0]

    static = tensor(1, 8, 4, 6).to(rank.device)
    backend = choose_backend("auto", rank.device)
    backend.capture([Capture(name="attention", function=function, inputs=(static,))])


def layer(rank: RankContext, *, tp: int, size: int, name: str, slots: int = 1) -> Verdict:
    """A layer under TP with a CP group of some size; with two slots, both in flight together."""
    layout = RankLayout(tp=tp, cp=rank.world_size // tp)
    with (
        parallel_context(layout, descriptions=(TENSOR_PARALLEL,)) as context,
        dynamic_groups(context, sorted({1, size}), comm_type="p2p", ranks_per_node=2) as groups,
    ):
        config = preset(name)
        tensor_parallel = TensorParallel.of(
            context.groups[TENSOR_PARALLEL], sequence_parallel=tp > 1
        )
        module = whole(config, device=rank.device, tensor_parallel=tensor_parallel).layers["0"]
        batch = rank_batch(
            random_sequences(), groups.group(size), multiple=16, tail_rows=16, device=rank.device
        )
        backend = choose_backend("auto", rank.device)
        rows = batch.rows // tp
        return _layer_verdict(backend, module, batch, tensor(rows, config.hidden).shape, slots)


def _layer_verdict(
    backend: CaptureBackend, module: nn.Module, batch: Any, shape: torch.Size, slots: int
) -> Verdict:
    device = batch.positions.device
    plan = (
        batch.attention_plan
    )  # made before the capture, since it copies row numbers to the device

    def function(x: torch.Tensor, positions: torch.Tensor) -> Any:
        moved = replace(batch, positions=positions)
        vars(moved)["attention_plan"] = plan
        return module(x, moved)

    def rows(seed: int) -> torch.Tensor:
        return tensor(*shape, seed=seed + dist.get_rank()).to(device).requires_grad_()

    parameters = dict(module.named_parameters())
    graphed = [
        backend.capture(
            [
                Capture(
                    name=f"layer 0, slot {slot}",
                    function=function,
                    inputs=(rows(0), batch.positions.clone()),
                    parameters=parameters,
                )
            ]
        )[0]
        for slot in range(slots)
    ]
    trained = list(parameters.values())
    verdict = {}
    for seed in (10, 20):
        positions = batch.positions + seed
        given = [(rows(seed + slot), positions) for slot in range(slots)]
        expected = _together([function] * slots, given, trained)
        verdict[f"replay {seed}"] = equal(_together(graphed, given, trained), expected)
    replays = [(one.replays.forward, one.replays.backward) for one in graphed]
    return {**verdict, "counted": replays == [(2, 2)] * slots}


def _together(
    functions: list[Callable[..., Any]], given: list[tuple[torch.Tensor, ...]], trained: list[Any]
) -> list[torch.Tensor]:
    """All forwards, then all backwards in the same order; outputs and gradients."""
    for parameter in trained:
        parameter.grad = None
    inputs = [
        tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in one) for one in given
    ]
    outputs = [function(*one) for function, one in zip(functions, inputs, strict=True)]
    kept = []
    for output in outputs:
        found = [o for o in output if o is not None]
        kept += [o.detach().clone() for o in found]
        torch.autograd.backward(found, [torch.ones_like(o) for o in found])
    gradients = [t.grad for one in inputs for t in one if t.grad is not None]
    return kept + gradients + [p.grad for p in trained]


def transfers_by_hand(rank: RankContext) -> Verdict:
    """Two messages in flight at once, computation between their start and their end."""
    world = Communicator(dist.group.WORLD)

    def function(x: torch.Tensor) -> torch.Tensor:
        there, back = torch.empty_like(x), torch.empty_like(x)
        sent = x * 2
        first = world.shift(sent, there, tag=1)
        busy = x.exp() + sent
        second = world.shift(busy, back, tag=2)
        busy_too = busy.sum(0)
        wait(first)
        total = there + busy_too
        wait(second)
        sent.zero_()
        summed = back.clone()
        dist.all_reduce(summed)
        dist.broadcast(summed, 0)
        gathered = [torch.empty_like(summed) for _ in range(world.size)]
        dist.all_gather(gathered, summed * (world.rank + 1))
        return total + sent + torch.stack(gathered).sum(0)

    backend = choose_backend("auto", rank.device)
    static = tensor(6, 3, seed=rank.rank).to(rank.device)
    (graphed,) = backend.capture([Capture(name="hand", function=function, inputs=(static,))])
    given = [tensor(6, 3, seed=50 + rank.rank).to(rank.device)]
    return {"replay": equal([graphed(*given)], [function(*given)])}


def host_waits(rank: RankContext) -> str:
    """A barrier in a graph; every rank is told."""

    def function(x: torch.Tensor) -> torch.Tensor:
        dist.barrier()
        return x * 2

    backend = choose_backend("tape", torch.device("cpu"))
    backend.capture([Capture(name="part", function=function, inputs=(tensor(3),))], warm_up=0)
    return "captured"


def _same(left: Callable[..., Any], right: Callable[..., Any], given: list[torch.Tensor]) -> bool:
    return equal(results(left, given), results(right, given))


EXACT = {"replay 10": True, "replay 20": True}


by_attention = pytest.mark.parametrize(
    ("comm_type", "world_size"),
    [*itertools.product(("p2p", "all_gather", "a2a"), (2, 4)), ("a2a+p2p", 4)],
)


@by_attention
def test_attention(comm_type: str, world_size: int, cpu_cluster: Cluster) -> None:
    outcome = cpu_cluster.run(attention, world_size=world_size, comm_type=comm_type)
    assert outcome.values == (EXACT,) * world_size


@needs_gpu
@by_attention
def test_attention_on_a_gpu(comm_type: str, world_size: int, gpu_cluster: Cluster) -> None:
    test_attention(comm_type, world_size, gpu_cluster)


@pytest.mark.parametrize(
    ("comm_type", "lost"), [("all_gather", "c10d::_allgather_base_"), ("p2p", "aten::add_.Tensor")]
)
def test_a_lost_operation_is_seen(comm_type: str, lost: str, cpu_cluster: Cluster) -> None:
    outcome = cpu_cluster.run(attention, world_size=2, comm_type=comm_type, lost=lost)
    assert not any(value["replay 10"] for value in outcome.values)


def test_a_plan_made_in_the_capture_is_refused(either_cluster: Cluster) -> None:
    """A tape refuses what a GPU refuses, and says where."""
    on_tape = r"a tensor made without device= at attention/exchange.py:\d+: copies from host"
    on_gpu = "it cannot be captured: .*"
    with pytest.raises(InputError, match=rf"attention, forward: ({on_tape}|{on_gpu})"):
        either_cluster.run(plans_inside, world_size=2)


by_layer = pytest.mark.parametrize(
    ("name", "tp", "size", "slots"),
    [("qwen3-tiny", 2, 1, 1), ("qwen3-tiny", 1, 2, 2), ("moonlight-tiny", 2, 2, 1)],
)


@by_layer
def test_layer(name: str, tp: int, size: int, slots: int, cpu_cluster: Cluster) -> None:
    outcome = cpu_cluster.run(layer, world_size=4, tp=tp, size=size, name=name, slots=slots)
    assert outcome.values == ({**EXACT, "counted": True},) * 4


@needs_gpu
@by_layer
def test_layer_on_a_gpu(name: str, tp: int, size: int, slots: int, gpu_cluster: Cluster) -> None:
    test_layer(name, tp, size, slots, gpu_cluster)


@pytest.mark.parametrize("world_size", [2, 4])
def test_transfers_in_flight(world_size: int, either_cluster: Cluster) -> None:
    outcome = either_cluster.run(transfers_by_hand, world_size=world_size)
    assert outcome.values == ({"replay": True},) * world_size


def test_a_barrier_is_refused(cpu_cluster: Cluster) -> None:
    with pytest.raises(
        InputError, match=r"part, forward: barrier at smoke/test_graph_capture.py:\d+: "
    ):
        cpu_cluster.run(host_waits, world_size=2)
