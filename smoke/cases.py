"""What the ranks of a smoke test run. Module-level functions, so that they can be sent by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ringproof.cluster import RankContext
from ringproof.errors import InputError
from ringproof.reference.attention import parity as parity_module
from ringproof.reference.attention.attention import AttentionOptions, context_parallel_attention
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.communicator import Traffic
from ringproof.reference.attention.parity import GROUPS, demonstrate, print_traffic
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.topology.census import print_census
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.layout import RankLayout


def parity(rank: RankContext, *, cases: Sequence[ParityCase], evidence: bool = False) -> Any:
    """The result of each case, the same on every rank."""
    return demonstrate(cases, rank.device, evidence=evidence)


def broken_parity(rank: RankContext, *, case: ParityCase, fault: str) -> Any:
    """Parity with the wrong groups, as seen in real trainings, and its log.

    ``communication-off``: each rank attends to its own chunk, which is what a missing group does
    to Transformer Engine. ``swapped-levels``: the all-to-all on the strided level, the ring on
    the consecutive one. ``none``: as it should be.
    """
    traffic = Traffic()
    layout = RankLayout(cp=case.world)
    with parallel_context(layout, case.hierarchical_sizes, descriptions=GROUPS) as context:
        print_census(sys.stderr)
        alone: Any = context.groups["TENSOR_MODEL_PARALLEL_GROUP"]
        right: Any = context.context_parallel_group
        if case.comm_type == "a2a+p2p":
            right, alone = context.hierarchical_groups, (alone, alone)
        groups = {"none": right, "communication-off": alone, "swapped-levels": right}
        if fault == "swapped-levels":
            groups[fault] = right[::-1]
        result = parity_module.measure(
            case, context, rank.device, group=groups[fault], traffic=traffic
        )
        print_traffic(traffic, context)
    return result


def upstream_groups(
    rank: RankContext, *, sizes: dict[str, int], order: str, hierarchical_sizes: Sequence[int]
) -> list[tuple[str, tuple[int, ...]]]:
    """Run Megatron-LM's own initialisation; the census of what it created, by rank."""
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes.get("tp", 1),
        context_parallel_size=sizes.get("cp", 1),
        pipeline_model_parallel_size=sizes.get("pp", 1),
        hierarchical_context_parallel_sizes=list(hierarchical_sizes) or None,
        order=order,
        create_gloo_process_groups=False,
    )
    try:
        lines = print_census(sys.stderr)
        return [(line.group, line.ranks) for line in lines]
    finally:
        parallel_state.destroy_model_parallel()


def parity_with(
    rank: RankContext, *, case: ParityCase, packs: Mapping[str, PackedSequences]
) -> dict[str, Any]:
    """Parity of a case whose attention is given other packs, by name."""
    layout = RankLayout(cp=case.world)
    with parallel_context(layout, case.hierarchical_sizes, descriptions=GROUPS) as context:
        return {
            name: parity_module.measure(case, context, rank.device, packed=packed)
            for name, packed in packs.items()
        }


def attend_packed(
    rank: RankContext, *, shape: tuple[int, ...], packed: PackedSequences | None
) -> None:
    """One forward of rows of that shape."""
    q = torch.zeros(shape, device=rank.device)
    with parallel_context(RankLayout(cp=rank.world_size), descriptions=GROUPS) as context:
        context_parallel_attention(
            q, q, q, comm_type="p2p", group=context.context_parallel_group, packed=packed
        )


def fail(how: str) -> None:
    """Fail as a rank can: by a signal, ``refused``, ``raised`` or ``hung``; else not at all."""
    if how.startswith("SIG"):
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.Signals[how])
    if how == "refused":
        raise InputError("b.txt", "it cannot be read; leave it out")
    if how == "raised":
        raise ValueError("the real cause")
    while how == "hung":
        time.sleep(0.1)


def fail_on(
    rank: RankContext, *, culprits: Sequence[int], how: str, follower: int = -1, **_: Any
) -> None:
    """Some ranks fail while the others wait for them in a collective.

    The follower ends its process half a second later, as a watchdog would.
    """
    dist.barrier()
    if rank.rank in culprits:
        fail(how)
    if rank.rank == follower:
        time.sleep(0.5)
        os._exit(7)
    dist.barrier()


def step_then_hang(rank: RankContext, *, steps: int, seconds: float, culprit: int) -> None:
    """Say something after each step of ``seconds``; after the last, one rank sleeps."""
    for step in range(steps):
        time.sleep(seconds)
        dist.barrier()
        if rank.rank == 0:
            print(f"step {step}", flush=True)
    if rank.rank == culprit:
        fail("hung")
    dist.barrier()


def hang_in_attention(rank: RankContext, *, culprit: int, comm_type: str, backward: bool) -> None:
    """One rank never arrives in CP attention, forward or backward."""
    q = torch.ones(1, 8, 4, 8, device=rank.device, requires_grad=True)
    for _ in range(1 if backward else 0):
        out, _ = context_parallel_attention(q, q, q, comm_type=comm_type, group=dist.group.WORLD)
        if rank.rank != culprit:
            out.sum().backward()
    if rank.rank == culprit:
        fail("hung")
    context_parallel_attention(q, q, q, comm_type=comm_type, group=dist.group.WORLD)


def print_for_ever(rank: RankContext) -> None:
    """A rank that is stuck in a loop and says so all the time."""
    while True:
        os.write(1, b"step\n" * 1000)


def variable(rank: RankContext, *, name: str) -> str | None:
    """An environment variable, as this rank sees it."""
    return os.environ.get(name)


class Unreadable:
    """Can be pickled, and not rebuilt."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return int, ("not a number",)


def return_unreadable(rank: RankContext) -> Any:
    """A value that the parent cannot read."""
    return Unreadable()


def report(rank: RankContext, *, text: str) -> tuple[int, int, int]:
    """Print, and tell who and where this is."""
    print(f"{text} {rank.rank}", flush=True)
    return dist.get_rank(), dist.get_world_size(), os.getpid()


def allocate_unpicklable(rank: RankContext) -> Any:
    """A value that cannot be sent."""
    return lambda: rank


def attend(
    rank: RankContext,
    *,
    comm_type: str,
    rows: int,
    heads: int,
    kv_heads: int,
    sizes: Sequence[int] = (),
    group: str = "right",
    dtypes: tuple[str, str] = ("float32", "float32"),
    **options: Any,
) -> dict[str, int]:
    """One forward on this rank; bytes sent by group. ``group`` may be wrong on purpose."""
    traffic = Traffic()
    q_dtype, kv_dtype = (getattr(torch, name) for name in dtypes)
    q = torch.zeros(1, rows, heads, 8, device=rank.device, dtype=q_dtype)
    kv = torch.zeros(1, rows, kv_heads, 8, device=rank.device, dtype=kv_dtype)
    with parallel_context(RankLayout(cp=rank.world_size), sizes, descriptions=GROUPS) as context:
        flat = context.context_parallel_group
        right = context.hierarchical_groups if sizes else flat
        groups = {"right": right, "missing": None, "one": flat, "three": (flat, flat, flat)}
        groups["same"] = (flat, flat)
        chosen: Any = groups[group]
        if group == "missing" and comm_type == "a2a+p2p":
            chosen = (None, None)
        context_parallel_attention(
            q,
            kv,
            kv,
            comm_type=comm_type,
            group=chosen,
            options=AttentionOptions(**options),
            traffic=traffic,
        )
    return {line.group: line.bytes_sent for line in traffic.lines(())}
