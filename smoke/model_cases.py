"""What the ranks of the model's parity tests run: one training step's gradients, in any layout.

On microbatches as they come, or on static ones of fixed capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from checks.model.whole_model import whole
from ringproof.cluster import RankContext
from ringproof.reference.model import mamba, moe
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig
from ringproof.reference.model.mamba import HeadShares, Mamba
from ringproof.reference.model.parameters import ParameterKind
from ringproof.reference.model.stage import Stage
from ringproof.reference.model.static import batch_tensors, load, static_batch
from ringproof.reference.model.tensor_parallel import (
    TensorParallel,
    copy_to_region,
    reduce_from_region,
    scatter_rows,
)
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import DynamicGroups, dynamic_groups
from ringproof.reference.topology.layout import RankLayout
from smoke.faults import FAULTS, Site, injected
from smoke.model_batches import (
    CAPACITY,
    LENGTHS,
    PACKS,
    capacity_batch,
    first_difference,
    op_stream,
    random_sequences,
    rank_batch,
    totals,
)

TENSOR_PARALLEL = "TENSOR_MODEL_PARALLEL_GROUP"
READ_BACK = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount")
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
        recompute: See ``Stage``.
        static: Whether microbatches are static; one for each CP size, refilled in turn.
        stale: Tensors of a static microbatch whose names begin with it are not overwritten.
        fault: See :func:`_fault`; or ``no-partial-sum`` (gradients that are partial over TP are not
            summed) or ``local-positions`` (each CP rank counts positions from its own first row).
    """

    config: ModelConfig
    tp: int = 1
    domain: int = 1
    sequence_parallel: bool = False
    comm_type: str = "p2p"
    partition: str = "zigzag"
    plan: tuple[Microbatch, ...] | None = None
    recompute: bool = False
    static: bool = False
    stale: str = ""
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
        partial: Names of parameters whose gradients are partial over TP.
        unequal: Names of replicated parameters whose gradients differ between TP ranks.
    """

    losses: Mapping[str, float]
    gradients: Mapping[str, torch.Tensor]
    partial: frozenset[str]
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
        stage = whole(case.config, device=rank.device, tensor_parallel=tp, recompute=case.recompute)
        with _fault(case, rank, groups, tp):
            losses = _run(stage, batches(case, groups, rank.device))
        for loss in losses.values():
            dist.all_reduce(loss, group=groups.domain)
        gradients, unequal = whole_gradients(stage, groups, tp, fault=case.fault)
    summed = {name: float(loss) for name, loss in losses.items()}
    kinds = stage.kinds.items()
    partial = frozenset(name for name, kind in kinds if kind.partial_over_tensor_parallel)
    return Step(summed, gradients if rank.rank == 0 else {}, partial, unequal)


def _run(stage: Stage, given: Iterable[PackedBatch]) -> dict[str, torch.Tensor]:
    """Forward and backward of each microbatch; the sum of its losses, by name."""
    losses: dict[str, torch.Tensor] = {}
    for batch in given:
        output = stage(batch.tokens, batch)
        output.value.backward()
        for name, loss in output.losses.items():
            losses[name] = losses.get(name, torch.zeros_like(loss)) + loss
    return losses


def _fault(
    case: ModelCase, rank: RankContext, groups: DynamicGroups, tp: TensorParallel
) -> AbstractContextManager[Any]:
    """A fault of the catalogue, or one of a part of the model.

    The router's balance loss is ``counted over the domain``, that is the ranks that would share the
    microbatch under static CP, or ``counted without TP``. Mamba's state or convolution goes on over
    borders, copies of B and C are of the wrong group, or its rows of padding hold NaN, which nobody
    may see.
    """
    over_tensor_parallel = (tp.group,) if tp.rows_are_cut else ()
    forward = Mamba.forward
    patches = {
        "counted over the domain": (
            moe, "counting_groups", lambda batch, _: (groups.domain, *over_tensor_parallel)
        ),
        "counted without TP": (moe, "counting_groups", lambda batch, _: (batch.group.flat,)),
        "state crosses borders": (mamba, "state_space_scan", _borderless(mamba.state_space_scan)),
        "convolution crosses borders": (
            mamba, "causal_convolution", _borderless(mamba.causal_convolution)
        ),
        # B and C of all groups once, then all again: the wrong group for most heads.
        "copies of the wrong group": (
            HeadShares,
            "_copies",
            lambda shares, states: states.repeat(1, shares.heads // shares.groups // shares.run),
        ),
        "padding of NaN": (
            Mamba,
            "forward",
            lambda self, x, batch: forward(
                self, torch.where(batch.real[:, None], x, torch.nan), batch
            ),
        ),
    }  # fmt: skip
    if case.fault in patches:
        return patch.object(*patches[case.fault])
    known = any(fault.id == case.fault for fault in FAULTS)
    return injected(case.fault if known else "", Site(rank, RankLayout(tp=case.tp, cp=case.domain)))


def _borderless(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """As if all rows that are no padding (-1) were of one sequence."""
    return lambda *others: function(*others[:-1], others[-1].clamp(max=0))


def batches(case: ModelCase, groups: DynamicGroups, device: torch.device) -> Iterator[PackedBatch]:
    """This rank's microbatches."""
    sequences = random_sequences()
    multiple = 48 if case.domain == 3 else 16
    slots: dict[int, PackedBatch] = {}
    for size, chosen in own_groups(case, groups.domain_rank):
        own, group = [sequences[index] for index in chosen], groups.group(size)
        options: dict[str, Any] = {
            "comm_type": case.comm_type,
            "partition": case.partition,
            "depths": case.config.mtp_depths,
            "total": totals(sequences, case.config.mtp_depths),
            "device": device,
        }
        if case.static:
            batch = capacity_batch(own, group, CAPACITY, **options)
            yield refilled(slots.setdefault(size, static_batch(batch)), batch, case.stale)
            continue
        batch = rank_batch(own, group, multiple=multiple, tail_rows=multiple, **options)
        if case.fault == "local-positions":
            batch = replace(batch, positions=torch.arange(batch.rows, device=device))
        yield batch


def refilled(slot: PackedBatch, batch: PackedBatch, stale: str) -> PackedBatch:
    """A static microbatch with the tensors of another one, apart from those that stay stale."""
    tensors = batch_tensors(slot)
    kept = {n: t.clone() for n, t in tensors.items() if stale and n.startswith(stale)}
    load(slot, batch)
    for name, tensor in kept.items():
        tensors[name].copy_(tensor)
    return slot


def own_groups(case: ModelCase, rank: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Size and sequences of the group that holds a rank, for each microbatch."""
    for microbatch in case.microbatches:
        first = 0
        for size, chosen in microbatch:
            if first <= rank < first + size:
                yield size, chosen
            first += size


def whole_gradients(
    stage: Stage, groups: DynamicGroups, tp: TensorParallel, *, fault: str
) -> tuple[dict[str, torch.Tensor], frozenset[str]]:
    """Summed over the domain, partial ones over TP, and put together from the parts of TP."""
    found, unequal = {}, set()
    for name, parameter in stage.named_parameters():
        kind, gradient = stage.kinds[name], parameter.grad
        assert gradient is not None, name
        dist.all_reduce(gradient, group=groups.domain)
        if kind.partial_over_tensor_parallel and fault != "no-partial-sum":
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


def duals(rank: RankContext, *, sequence_parallel: bool) -> dict[str, float]:
    """How far each operation is from the transpose of the linear map that it is.

    For a map ``f`` and its backward ``f'``, ``<f(x), y> = <x, f'(y)>``, where a product of what
    every rank holds counts once and one of what each rank holds apart is summed over ranks.
    """
    size = rank.world_size
    with parallel_context(RankLayout(tp=size), descriptions=(TENSOR_PARALLEL,)) as context:
        tp = TensorParallel.of(context.groups[TENSOR_PARALLEL], sequence_parallel=sequence_parallel)
        same, apart, share = ("same", 12), ("apart", 12), ("apart", 12 // size)
        rows = share if sequence_parallel else same
        maps = {
            "copy_to_region": (copy_to_region, rows, apart),
            "reduce_from_region": (reduce_from_region, apart, rows),
            "scatter_rows": (scatter_rows, same, rows),
        }
        return {
            name: _adjoint_error(function, tp, before, after, device=rank.device)
            for name, (function, before, after) in maps.items()
        }


def _adjoint_error(
    function: Any,
    tp: TensorParallel,
    before: tuple[str, int],
    after: tuple[str, int],
    *,
    device: torch.device,
) -> float:
    x = _random(before, tp, seed=1).to(device).requires_grad_()
    y = _random(after, tp, seed=2).to(device)
    out = function(x, tp)
    assert out.shape == y.shape
    out.backward(y)
    assert x.grad is not None
    forward = _product(out.detach(), y, after[0], tp)
    backward = _product(x.detach(), x.grad, before[0], tp)
    assert abs(forward) > 1e-3
    return abs(forward - backward) / abs(forward)


def _random(kind: tuple[str, int], tp: TensorParallel, *, seed: int) -> torch.Tensor:
    where, rows = kind
    generator = torch.Generator().manual_seed(seed + (100 * tp.rank if where == "apart" else 0))
    return torch.randn(rows, 5, dtype=torch.float64, generator=generator)


def _product(a: torch.Tensor, b: torch.Tensor, where: str, tp: TensorParallel) -> float:
    product = (a * b).sum()
    if where == "apart":
        dist.all_reduce(product, group=tp.group)
    return float(product)


def uneven_rows(rank: RankContext) -> None:
    """Sequence parallelism over rows that it cannot cut."""
    with parallel_context(
        RankLayout(tp=rank.world_size), descriptions=(TENSOR_PARALLEL,)
    ) as context:
        tp = TensorParallel.of(context.groups[TENSOR_PARALLEL], sequence_parallel=True)
        reduce_from_region(torch.zeros(rank.world_size + 1, 2, device=rank.device), tp)


def streams(
    rank: RankContext, *, config: ModelConfig, comm_type: str, partition: str, static: bool
) -> tuple[str, int, set[str], list[str]]:
    """A step over each of two packs on this rank.

    Returns:
        Where they part; how many operations; which move data; which read back.
    """
    layout, size = RankLayout(cp=rank.world_size), rank.world_size
    with (
        parallel_context(layout) as context,
        dynamic_groups(context, (size,), comm_type=comm_type, ranks_per_node=2) as groups,
    ):
        stage = whole(config, device=rank.device)
        found = []
        for lengths in PACKS:
            batch = capacity_batch(
                random_sequences(lengths, seed=len(lengths)),
                groups.group(size),
                CAPACITY,
                comm_type=comm_type,
                partition=partition,
                depths=config.mtp_depths,
            )
            given = batch if static else replace(batch, metadata=None)
            stage.zero_grad()
            found.append(
                op_stream(
                    batch_tensors(batch).values(),
                    lambda given=given: stage(given.tokens, given).value.backward(),
                )
            )
    read = {line[0] for line in found[0] if any(name in line[0] for name in READ_BACK)}
    moves = {line[0].split(".")[1] for line in found[0] if line[0].startswith("c10d.")}
    return first_difference(found), len(found[0]), moves, sorted(read)
