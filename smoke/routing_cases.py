"""What the ranks of the dynamic-group and routing tests run: module-level functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ringproof.cluster import RankContext
from ringproof.errors import InputError
from ringproof.reference.attention.attention import context_parallel_attention
from ringproof.reference.attention.communicator import Traffic
from ringproof.reference.attention.dense import dense_attention
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.packing.capacity import local_to_global
from ringproof.reference.packing.sequences import pack
from ringproof.reference.topology.census import print_census
from ringproof.reference.topology.context import ParallelContext, parallel_context
from ringproof.reference.topology.dynamic import DynamicGroups, dynamic_groups
from ringproof.reference.topology.layout import RankLayout
from ringproof.reference.training.agreement import check_agreement
from ringproof.reference.training.data import Documents, Sampler, Tokens, read_data
from ringproof.reference.training.routing import TokenNeeds, owned_documents, route_batches
from ringproof.reference.training.schedules import Schedule, StepPlan, plan_digest, plan_step

BATCH = 12


@contextmanager
def grouped(
    layout: RankLayout, sizes: Sequence[int], comm_type: str = "p2p", per_node: int = 8
) -> Iterator[tuple[ParallelContext, DynamicGroups]]:
    """The context and its dynamic groups."""
    with (
        parallel_context(layout) as context,
        dynamic_groups(context, sizes, comm_type=comm_type, ranks_per_node=per_node) as groups,
    ):
        yield context, groups


def list_groups(
    rank: RankContext, *, layout: RankLayout, sizes: Sequence[int], comm_type: str, per_node: int
) -> dict[str, Any]:
    """The census, and the members of each group as told by a collective over it."""
    with grouped(layout, sizes, comm_type, per_node) as (_, groups):
        lines = print_census(sys.stderr)
        members = {size: told(rank, groups.group(size).flat) for size in sizes}
        levels = {
            size: [told(rank, level) for level in groups.group(size).levels or ()] for size in sizes
        }
        return {
            "census": [(line.group, line.ranks) for line in lines],
            "domain": (groups.domain_rank, groups.domain_size, told(rank, groups.domain)),
            "members": members,
            "levels": levels,
            "places": {size: groups.group(size).rank for size in sizes},
        }


def told(rank: RankContext, group: dist.ProcessGroup) -> list[int]:
    """The ranks of a group, gathered over it."""
    own = torch.tensor([rank.rank], device=rank.device)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, own, group=group)
    return [int(part) for part in found]


def attend(
    rank: RankContext, *, sizes: Sequence[int], comm_type: str, per_node: int, swapped: bool = False
) -> dict[int, float]:
    """Largest difference to dense attention on each dynamic group, its own pack on every group."""
    found = {}
    with grouped(RankLayout(cp=rank.world_size), sizes, comm_type, per_node) as (_, groups):
        for size in sizes:
            group = groups.group(size)
            packed = pack([11, 40, 3], multiple=2 * size)
            generator = torch.Generator().manual_seed(groups.domain_rank // size)
            q, k, v = (
                torch.randn(packed.rows, 8, 4, generator=generator, dtype=torch.float64)
                for _ in range(3)
            )
            rows = torch.from_numpy(local_to_global(packed, size, group.rank, "zigzag"))
            on = group.of_type(comm_type)
            out, _ = context_parallel_attention(
                *(whole[rows].to(rank.device) for whole in (q, k, v)),
                comm_type=comm_type,
                group=on[::-1] if swapped else on,
                packed=packed,
            )
            expected = torch.zeros_like(q)
            for span in packed.real_spans:
                own = [whole[None, span.index] for whole in (q, k, v)]
                expected[span.index] = dense_attention(*own, own[0], causal=True).out[0]
            found[size] = float((out.cpu() - expected[rows]).abs().max())
    return found


def planned(schedule: Schedule, *, seed: int, step: int) -> tuple[Documents, StepPlan]:
    """A step of the synthetic language, as a trainer plans it."""
    documents = read_data("synthetic:documents=200,mean=40", longest=160).training
    sampler = Sampler(seed=seed, global_batch=BATCH, documents=len(documents.lengths))
    indices = sampler.indices(step)
    return documents, plan_step(documents.lengths[indices], schedule, documents=indices)


def arrived(batch: PackedBatch) -> SimpleNamespace:
    """A microbatch as a rank got it, on the CPU and without its group."""
    names = ("positions", "entries", "real", "tokens", "future")
    tensors = {name: getattr(batch, name) for name in names}
    moved = {name: None if one is None else one.cpu() for name, one in tensors.items()}
    return SimpleNamespace(size=batch.group.size, rows=batch.rows, **moved)


def raised(document: Tokens, above: int) -> Tokens:
    """A document of bytes with larger token ids."""
    return (document.astype(np.int64) + above).astype(np.min_scalar_type(255 + above))


def route_steps(
    rank: RankContext,
    *,
    layout: RankLayout,
    schedule: Schedule,
    depths: int,
    steps: int,
    liar: int | None = None,
    above: int = 0,
) -> list[dict[str, Any]]:
    """Route some steps: what this rank got, and what it sent.

    ``liar`` is a rank that sends its documents backwards; ``above`` is added to every token id.
    """
    stage = layout.coordinate("pp", rank.rank)
    needs = TokenNeeds(
        depths=depths, embeds=stage == 0, predicts=stage == layout.pp - 1, device=rank.device,
        ids=np.min_scalar_type(255 + above),
    )  # fmt: skip
    found = []
    with grouped(layout, schedule.sizes) as (_, groups):
        for number in range(steps):
            documents, step = planned(schedule, seed=5, step=number)
            owned = owned_documents(documents, step, groups.domain_rank)
            owned = {sequence: raised(text, above) for sequence, text in owned.items()}
            if rank.rank == liar:
                owned = {sequence: text[::-1].copy() for sequence, text in owned.items()}
            traffic = Traffic()
            batches = route_batches(step, owned, groups, needs, traffic=traffic)
            operations = {name: dict(kinds) for name, kinds in traffic.operations.items()}
            found.append(
                {
                    "batches": [arrived(batch) for batch in batches],
                    "operations": operations,
                    "bytes": sum(traffic.bytes_sent.values()),
                }
            )
    return found


def disagree(rank: RankContext, *, schedule: Schedule, different: Sequence[int]) -> None:
    """Some ranks have another seed."""
    _, step = planned(schedule, seed=int(rank.rank in different), step=7)
    check_agreement(plan_digest(step), what="plan of step 7")


def ask_for(rank: RankContext, *, sizes: Sequence[int], size: int) -> str:
    """What is said of the levels of a group of that size, where groups have none."""
    with grouped(RankLayout(cp=rank.world_size), sizes) as (_, groups):
        try:
            groups.group(size).of_type("a2a+p2p")
        except InputError as refusal:
            return str(refusal)
    return ""
