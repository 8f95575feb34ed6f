"""What the ranks of the model's parity tests run: one training step's gradients, in any layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from checks.model.whole_model import whole
from ringproof.cluster import RankContext
from ringproof.reference.model import moe
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig
from ringproof.reference.model.parameters import ParameterKind
from ringproof.reference.model.stage import Stage
from ringproof.reference.model.tensor_parallel import TensorParallel, reduce_from_region
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import DynamicGroups, dynamic_groups
from ringproof.reference.topology.layout import RankLayout
from smoke.model_batches import LENGTHS, random_sequences, rank_batch, totals

TENSOR_PARALLEL = "TENSOR_MODEL_PARALLEL_GROUP"
Microbatch = tuple[tuple[int, tuple[int, ...]], ...]
"""Groups of the domain in order: size, and which sequences it shares."""


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """One step.

    Args:
        config: The model.
        tp: Tensor parallel size.
        domain: Ranks over which CP groups are laid.
        sequence_parallel: Whether TP cuts rows, too.
        comm_type, partition: How attention communicates, and how rows are cut.
        plan: Its microbatches; ``None`` is one, which the whole domain shares.
        fault: See :func:`_fault`.
    """

    config: ModelConfig
    tp: int = 1
    domain: int = 1
    sequence_parallel: bool = False
    comm_type: str = "p2p"
    partition: str = "zigzag"
    plan: tuple[Microbatch, ...] | None = None
    fault: str = ""

    @property
    def world(self) -> int:
        return self.tp * self.domain

    @property
    def microbatches(self) -> tuple[Microbatch, ...]:
        return self.plan or (((self.domain, tuple(range(len(LENGTHS)))),),)


@dataclass(frozen=True)
class Step:
    """What a step gives, the same on every rank.

    Args:
        losses: Over all microbatches and ranks, by name.
        gradients: Gradients of the full parameters, by name; on rank 0 only.
        unequal: Names of replicated parameters whose gradients differ between TP ranks.
    """

    losses: Mapping[str, float]
    gradients: Mapping[str, torch.Tensor]
    unequal: frozenset[str]


def step(rank: RankContext, *, case: ModelCase) -> Step:
    layout = RankLayout(tp=case.tp, cp=case.domain)
    sizes = sorted({size for microbatch in case.microbatches for size, _ in microbatch})
    with (
        parallel_context(layout, descriptions=(TENSOR_PARALLEL,)) as context,
        dynamic_groups(context, sizes, comm_type=case.comm_type, ranks_per_node=2) as groups,
    ):
        tp = TensorParallel.of(
            context.groups[TENSOR_PARALLEL], sequence_parallel=case.sequence_parallel
        )
        stage = whole(case.config, device=rank.device, tensor_parallel=tp)
        with _fault(case.fault):
            losses = _run(stage, batches(case, groups, rank.device))
        for loss in losses.values():
            dist.all_reduce(loss, group=groups.domain)
        gradients, unequal = whole_gradients(stage, groups, tp)
    summed = {name: float(loss) for name, loss in losses.items()}
    return Step(summed, gradients if rank.rank == 0 else {}, unequal)


def _run(stage: Stage, given: Iterable[PackedBatch]) -> dict[str, torch.Tensor]:
    """Forward and backward of each microbatch; the sum of its losses, by name."""
    losses: dict[str, torch.Tensor] = {}
    for batch in given:
        output = stage(batch.tokens, batch)
        output.value.backward()
        for name, loss in output.losses.items():
            losses[name] = losses.get(name, torch.zeros_like(loss)) + loss
    return losses


def _fault(fault: str) -> AbstractContextManager[Any]:
    """Break the model: the router's balance loss is ``counted without TP``."""
    if not fault:
        return nullcontext()
    return patch.object(moe, "counting_groups", lambda batch, _: (batch.group.flat,))


def batches(case: ModelCase, groups: DynamicGroups, device: torch.device) -> Iterator[PackedBatch]:
    """This rank's microbatches."""
    sequences = random_sequences()
    multiple = 48 if case.domain == 3 else 16
    for microbatch in case.microbatches:
        first = 0
        for size, chosen in microbatch:
            if first <= groups.domain_rank < first + size:
                yield rank_batch(
                    [sequences[index] for index in chosen],
                    groups.group(size),
                    comm_type=case.comm_type,
                    partition=case.partition,
                    multiple=multiple,
                    tail_rows=multiple,
                    total=totals(sequences),
                    device=device,
                )
            first += size


def whole_gradients(
    stage: Stage, groups: DynamicGroups, tp: TensorParallel
) -> tuple[dict[str, torch.Tensor], frozenset[str]]:
    """Summed over the domain, partial ones over TP, and put together from the parts of TP."""
    found, unequal = {}, set()
    for name, parameter in stage.named_parameters():
        kind, gradient = stage.kinds[name], parameter.grad
        assert gradient is not None, name
        dist.all_reduce(gradient, group=groups.domain)
        if kind.partial_over_tensor_parallel:
            dist.all_reduce(gradient, group=tp.group)
        parts = [torch.empty_like(gradient) for _ in range(tp.size)]
        dist.all_gather(parts, gradient.contiguous(), group=tp.group)
        scale = float(parts[0].abs().max())
        if kind.split is None and any(
            float((part - parts[0]).abs().max()) > 1e-10 * scale for part in parts
        ):
            unequal.add(name)
        found[name] = assembled(kind, parts).cpu()
    return found, frozenset(unequal)


def assembled(kind: ParameterKind, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The full tensor from the parts of all TP ranks, in their order: what ``cut`` undoes."""
    if kind.split is None or len(parts) == 1:
        return parts[0]
    blocks = kind.blocks or [len(parts) * parts[0].shape[kind.split]]
    by_rank = [part.split([size // len(parts) for size in blocks], kind.split) for part in parts]
    return torch.cat([part for block in zip(*by_rank, strict=True) for part in block], kind.split)


def uneven_rows(rank: RankContext) -> None:
    """Sequence parallelism over rows that it cannot cut."""
    with parallel_context(
        RankLayout(tp=rank.world_size), descriptions=(TENSOR_PARALLEL,)
    ) as context:
        tp = TensorParallel.of(context.groups[TENSOR_PARALLEL], sequence_parallel=True)
        reduce_from_region(torch.zeros(rank.world_size + 1, 2, device=rank.device), tp)
