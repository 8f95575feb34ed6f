"""One part of a model on many ranks against the same part on one, a fault injected or not.

A case runs several microbatches through the same module, each on CP groups of its own size: a
domain of 4 ranks with sizes (1, 2, 4) computes four packs at once, then two, then one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from ringproof.harness.cluster import RankContext
from ringproof.reference.model import moe
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import preset
from ringproof.reference.model.mla import LatentAttention
from ringproof.reference.model.moe import MixtureOfExperts
from ringproof.reference.model.parameters import Builder, ParameterKind
from ringproof.reference.model.tensor_parallel import TensorParallel, all_reduce
from ringproof.reference.packing.maps import local_to_global
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import (
    ContextParallelGroup,
    DynamicGroups,
    dynamic_groups,
)
from ringproof.reference.topology.layout import RankLayout
from smoke.model_batches import random_sequences, rank_batch, totals

TENSOR = "TENSOR_MODEL_PARALLEL_GROUP"
ENTRIES = 4
AUXILIARY_WEIGHT = 1e3
"""So that the auxiliary loss is not lost beside the output."""


@dataclass(frozen=True, kw_only=True)
class PartCase:
    """What to run.

    Args:
        part: ``experts`` or ``latent``.
        tp: Tensor parallel size.
        sequence_parallel: Whether rows are cut over TP, too.
        domain: DPxCP ranks.
        sizes: CP size of each microbatch in turn.
        comm_type: Of attention.
        fault: What is done wrong: see :func:`_fault`; ``padding counted`` as tokens; or a ``part
            for the whole``, where partial gradients are not summed over TP.
    """

    part: str
    tp: int = 1
    sequence_parallel: bool = False
    domain: int = 1
    sizes: tuple[int, ...] = (1,)
    comm_type: str = "p2p"
    fault: str = "none"

    def packs(self) -> Iterator[tuple[int, int]]:
        """Microbatch and index of the group of every pack of the case."""
        for microbatch, size in enumerate(self.sizes):
            for group in range(self.domain // size):
                yield microbatch, group

    def sequences(self, microbatch: int, group: int) -> list[list[int]]:
        """Of one pack: each has another length and content, all have as many entries."""
        seed = 10 * microbatch + group
        lengths = [1 + (17 * seed + 29 * entry) % 37 for entry in range(ENTRIES)]
        return random_sequences(lengths, seed=seed)


@dataclass
class Found:
    """What a rank has computed: its outputs by pack, its inputs' gradients, the rest summed."""

    out: dict[tuple[int, int], torch.Tensor]
    x: dict[tuple[int, int], torch.Tensor]
    auxiliary: torch.Tensor
    weights: dict[str, torch.Tensor]


def compare(rank: RankContext, *, cases: list[PartCase]) -> list[dict[str, float]]:
    """Largest absolute error of each quantity over the ranks, one table for each case."""
    return [_compare(rank, case) for case in cases]


def _compare(rank: RankContext, case: PartCase) -> dict[str, float]:
    layout = RankLayout(tp=case.tp, cp=case.domain)
    with (
        parallel_context(layout, descriptions=(TENSOR,)) as context,
        dynamic_groups(
            context, {1, *case.sizes}, comm_type=case.comm_type, ranks_per_node=2
        ) as groups,
    ):
        tp = TensorParallel.of(context.groups[TENSOR], sequence_parallel=case.sequence_parallel)
        module, kinds = _module(case, tp, rank.device)
        with _fault(case, groups, tp):
            found = _share_of_rank(case, module, groups, rank.device)
        _reduce(case, found, kinds, groups, tp)
        wanted = _whole(case, groups.group(1), rank.device)
        errors = _errors(case, found, wanted, groups=groups, tp=tp, kinds=kinds)
    names, values = list(errors), torch.stack(list(errors.values())).detach()
    values = values.nan_to_num(nan=torch.inf)  # a maximum may pass over NaN
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return dict(zip(names, values.tolist(), strict=True))


def _module(
    case: PartCase, tp: TensorParallel, device: torch.device
) -> tuple[nn.Module, dict[str, ParameterKind]]:
    kinds: dict[str, ParameterKind] = {}
    builder = Builder(3, torch.float64, device, tp, kinds)
    make = {"experts": MixtureOfExperts, "latent": LatentAttention}[case.part]
    return make(preset("moonlight-tiny"), builder), kinds


def _batch(
    case: PartCase, pack: tuple[int, int], group: ContextParallelGroup, device: torch.device
) -> PackedBatch:
    every = [tokens for each in case.packs() for tokens in case.sequences(*each)]
    return rank_batch(
        case.sequences(*pack),
        group,
        comm_type=case.comm_type,
        multiple=2 * case.domain * case.tp,
        total=totals(every),
        device=device,
    )


def _vectors(
    case: PartCase, pack: tuple[int, int], batch: PackedBatch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Input of a whole pack, and the gradient of its output."""
    generator = torch.Generator().manual_seed(100 * pack[0] + pack[1])
    shape = (2, batch.packed.rows, preset("moonlight-tiny").hidden)
    x, upstream = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, upstream


def _share_of_rank(
    case: PartCase, module: nn.Module, groups: DynamicGroups, device: torch.device
) -> Found:
    """Every microbatch on the group of its size, this rank's rows."""
    found = Found({}, {}, torch.zeros((), dtype=torch.float64, device=device), {})
    for microbatch, size in enumerate(case.sizes):
        pack = (microbatch, groups.domain_rank // size)
        batch = _batch(case, pack, groups.group(size), device)
        if case.fault == "padding counted":
            batch = replace(batch, real=torch.ones_like(batch.real))
        _run(case, module, batch, pack, found)
    found.weights = {name: parameter.grad for name, parameter in module.named_parameters()}
    return found


def _run(
    case: PartCase, module: nn.Module, batch: PackedBatch, pack: tuple[int, int], found: Found
) -> None:
    """Forward and backward of one microbatch."""
    mine = _own_rows(batch, module.tensor_parallel)
    x, upstream = (v[mine].to(batch.positions.device) for v in _vectors(case, pack, batch))
    result = module(x.requires_grad_(), batch)
    out, auxiliary = result if case.part == "experts" else (result, result.new_zeros(()))
    ((out * upstream).sum() + AUXILIARY_WEIGHT * auxiliary).backward()
    found.out[pack], found.x[pack] = out.detach(), x.grad
    found.auxiliary += auxiliary.detach()


def _own_rows(batch: PackedBatch, tp: TensorParallel) -> torch.Tensor:
    """The pack's rows on this rank: cut over CP, and over TP under sequence parallelism."""
    group = batch.group
    rows = local_to_global(batch.packed, group.size, group.rank, batch.partition)
    own = torch.from_numpy(rows)
    return own.chunk(tp.size)[tp.rank] if tp.rows_are_cut else own


def _reduce(
    case: PartCase,
    found: Found,
    kinds: Mapping[str, ParameterKind],
    groups: DynamicGroups,
    tp: TensorParallel,
) -> None:
    """What a training loop does with gradients and losses: sum them, over the domain and TP."""
    for name, gradient in found.weights.items():
        if kinds[name].partial_over_tensor_parallel and case.fault != "part for the whole":
            gradient.copy_(all_reduce(gradient, tp))
        dist.all_reduce(gradient, group=groups.domain)
    if tp.rows_are_cut:
        found.auxiliary = all_reduce(found.auxiliary, tp)
    dist.all_reduce(found.auxiliary, group=groups.domain)


def _whole(case: PartCase, alone: ContextParallelGroup, device: torch.device) -> Found:
    """Every pack on one rank, one after the other."""
    module, _ = _module(case, TensorParallel(), device)
    found = Found({}, {}, torch.zeros((), dtype=torch.float64, device=device), {})
    for pack in case.packs():
        _run(case, module, _batch(case, pack, alone, device), pack, found)
    found.weights = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert all(gradient.any() for gradient in (*found.weights.values(), *found.x.values()))
    return found


def _errors(
    case: PartCase,
    found: Found,
    wanted: Found,
    *,
    groups: DynamicGroups,
    tp: TensorParallel,
    kinds: Mapping[str, ParameterKind],
) -> dict[str, torch.Tensor]:
    """Largest difference on this rank, by name."""
    errors = {"auxiliary": (found.auxiliary - wanted.auxiliary).abs()}
    for name, ours, theirs in (("out", found.out, wanted.out), ("x", found.x, wanted.x)):
        worst = []
        for pack, rows in ours.items():
            group = groups.group(case.sizes[pack[0]])
            mine = _own_rows(_batch(case, pack, group, rows.device), tp)
            worst.append((rows - theirs[pack][mine]).abs().max())
        errors[name] = torch.stack(worst).max()
    for name, gradient in found.weights.items():
        own = kinds[name].cut(wanted.weights[name], tp.size, tp.rank)
        errors[name] = (gradient - own).abs().max()
    return errors


def _fault(
    case: PartCase, groups: DynamicGroups, tp: TensorParallel
) -> AbstractContextManager[object]:
    """Other groups to count choices over than the microbatch's own, as a context.

    ``counted alone``: none at all. ``counted over the domain``: the ranks that would share the
    microbatch under static CP. ``counted without TP``: the CP group alone, as without sequence
    parallelism. Any other fault is injected elsewhere.
    """
    over_tensor_parallel = (tp.group,) if tp.rows_are_cut else ()
    wrong = {
        "counted alone": lambda batch, _: (),
        "counted over the domain": lambda batch, _: (groups.domain, *over_tensor_parallel),
        "counted without TP": lambda batch, _: (batch.group.flat,),
    }
    if case.fault not in wrong:
        return nullcontext()
    return patch.object(moe, "counting_groups", wrong[case.fault])
