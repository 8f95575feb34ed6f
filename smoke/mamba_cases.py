"""What the ranks of the Mamba tests run: the mixer over TP and CP, and over one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from ringproof.harness.cluster import RankContext
from ringproof.reference.model import batch as batch_module
from ringproof.reference.model import mamba as mamba_module
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import MambaShape, ModelConfig, preset
from ringproof.reference.model.mamba import HeadShares, Mamba
from ringproof.reference.model.parameters import Builder, ParameterKind
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.packing.maps import local_to_global
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.packing.shards import Sharding
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import ContextParallelGroup, DynamicGroups, dynamic_groups
from ringproof.reference.topology.layout import RankLayout
from smoke.model_batches import random_sequences, rank_batch

TENSOR_PARALLEL = "TENSOR_MODEL_PARALLEL_GROUP"
LENGTHS = (13, 48, 1, 70, 7, 40)
"""One of them without padding behind it: the convolution could reach across."""


@dataclass(frozen=True, kw_only=True)
class MixerCase:
    """One mixer, cut in one way, and perhaps broken.

    Args:
        heads, groups: Of the mixer.
        tp, sequence_parallel: How TP cuts it.
        partition: How CP cuts rows.
        fault: One of :data:`FAULTS`, or empty.
    """

    heads: int = 8
    groups: int = 2
    tp: int = 1
    sequence_parallel: bool = False
    partition: str = "zigzag"
    fault: str = ""

    @property
    def config(self) -> ModelConfig:
        shape = MambaShape(heads=self.heads, head_width=4, state_width=6, groups=self.groups)
        return replace(preset("nemotron-h-tiny"), mamba=shape, hidden=16)


@dataclass(frozen=True)
class Mixer:
    """A mixer and what its parameters are."""

    module: Mamba
    kinds: Mapping[str, ParameterKind]

    @classmethod
    def build(cls, config: ModelConfig, tp: TensorParallel) -> Mixer:
        kinds: dict[str, ParameterKind] = {}
        builder = Builder(5, torch.float64, torch.device("cpu"), tp, kinds)
        return cls(Mamba(config, builder), kinds)

    def gradients(self) -> dict[str, torch.Tensor]:
        return {name: p.grad for name, p in self.module.named_parameters() if p.grad is not None}


def measure(rank: RankContext, *, cases: Sequence[MixerCase]) -> list[dict[str, float]]:
    """Largest differences from one rank, of each case: output, input gradient, parameters'."""
    return [_measure(case, rank.world_size) for case in cases]


def _measure(case: MixerCase, world: int) -> dict[str, float]:
    with _groups(case.tp, world, (1, world // case.tp)) as (tensor_group, groups):
        tp = TensorParallel.of(tensor_group, sequence_parallel=case.sequence_parallel)
        wide, one = groups.group(world // case.tp), groups.group(1)
        whole, cut = Mixer.build(case.config, TensorParallel()), Mixer.build(case.config, tp)
        batch = _batch(one, case.partition, seed=0)
        y, dx = _pass(whole, batch, TensorParallel())
        share = _batch(wide, case.partition, seed=0)
        with FAULTS[case.fault]():
            own_y, own_dx = _pass(cut, share, tp)
        rows = _rows(share, tp)
        errors = {"y": _difference(own_y, y[rows]), "dx": _difference(own_dx, dx[rows])}
        found = cut.gradients()
        for gradient in found.values():
            dist.all_reduce(gradient, group=groups.domain)
        for name, gradient in whole.gradients().items():
            wanted = cut.kinds[name].cut(gradient, tp.size, tp.rank)
            assert wanted.abs().max() > 0, name
            errors[name] = _difference(found[name], wanted)
        return errors


def switch(rank: RankContext, *, case: MixerCase, sizes: Sequence[int]) -> dict[str, float]:
    """One mixer, a microbatch on each group size in turn, then backward in reverse order."""
    world = rank.world_size
    with _groups(1, world, sizes) as (_, groups):
        whole, cut = (Mixer.build(case.config, TensorParallel()) for _ in range(2))
        losses, wanted = [], []
        for seed, size in enumerate(sizes):
            share, batch = (_batch(groups.group(n), "zigzag", seed=seed) for n in (size, 1))
            wanted.append(_loss(whole, batch, TensorParallel())[0])
            # Every group of that size takes this microbatch; the domain's sum counts them all.
            losses.append(_loss(cut, share, TensorParallel())[0] * size / world)
        for loss in (*reversed(losses), *wanted):
            loss.backward()
        total = torch.stack(losses).detach()
        dist.all_reduce(total, group=groups.domain)
        found, errors = cut.gradients(), {"loss": _difference(total, torch.stack(wanted).detach())}
        for name, gradient in whole.gradients().items():
            dist.all_reduce(found[name], group=groups.domain)
            errors[name] = _difference(found[name], gradient)
        return errors


def refuse(rank: RankContext, *, case: MixerCase) -> None:
    """One forward of a mixer whose heads the ranks cannot share."""
    with _groups(1, rank.world_size, (rank.world_size,)) as (_, groups):
        batch = _batch(groups.group(rank.world_size), case.partition, seed=0)
        Mixer.build(case.config, TensorParallel()).module(torch.zeros(batch.rows, 16), batch)


@contextmanager
def _groups(
    tp: int, world: int, sizes: Sequence[int]
) -> Iterator[tuple[dist.ProcessGroup, DynamicGroups]]:
    layout = RankLayout(tp=tp, cp=world // tp)
    with (
        parallel_context(layout, descriptions=(TENSOR_PARALLEL,)) as context,
        dynamic_groups(context, sizes, comm_type="p2p", ranks_per_node=world) as groups,
    ):
        yield context.groups[TENSOR_PARALLEL], groups


def _batch(group: ContextParallelGroup, partition: str, *, seed: int) -> PackedBatch:
    """Sequences in an order of their own, the same pack over any group."""
    lengths = LENGTHS[seed:] + LENGTHS[:seed]
    multiple = 48 if dist.get_world_size() % 3 == 0 else 16
    sequences = random_sequences(lengths, seed=seed)
    return rank_batch(sequences, group, partition=partition, multiple=multiple, tail_rows=multiple)


def _rows(batch: PackedBatch, tp: TensorParallel) -> torch.Tensor:
    """The rows of the pack that this rank's residual stream holds."""
    cut = (batch.packed, batch.group.size, batch.group.rank, batch.partition)
    rows = torch.from_numpy(local_to_global(*cut))
    return rows.chunk(tp.size)[tp.rank] if tp.rows_are_cut else rows


def _loss(
    mixer: Mixer, batch: PackedBatch, tp: TensorParallel
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weighted sum of this rank's rows of the output, the output, and the input."""
    generator, rows = torch.Generator().manual_seed(batch.packed.lengths[0]), _rows(batch, tp)
    x, weights = torch.randn(2, batch.packed.rows, 16, generator=generator, dtype=torch.float64)
    for span in _padding(batch.packed):
        x[span] = float("nan")
    x = x[rows].requires_grad_()
    y = mixer.module(x, batch)
    return (y * weights[rows]).sum(), y, x


def _pass(
    mixer: Mixer, batch: PackedBatch, tp: TensorParallel
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and gradient of the input; those of the parameters are left in them."""
    loss, y, x = _loss(mixer, batch, tp)
    loss.backward()
    assert x.grad is not None
    return y.detach(), x.grad


def _padding(packed: PackedSequences) -> list[slice]:
    ends = zip(packed.cu_seqlens_padded, packed.cu_seqlens_padded[1:], packed.lengths, strict=False)
    return [slice(start + real, stop) for start, stop, real in ends]


def _difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max())


def _without_borders(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """As if all rows that are no padding (-1) were of one sequence."""

    def broken(*arguments: Any) -> torch.Tensor:
        *others, segments = arguments
        return function(*others, segments.clamp(max=0))

    return broken


def _rank_order(packed: PackedSequences, size: int, partition: str) -> Sharding:
    """Rows stay as they come in: those of rank 0, of rank 1, and so on."""
    return Sharding.of_pack(packed, size, "contiguous")


def _copies_side_by_side(shares: HeadShares, states: torch.Tensor) -> torch.Tensor:
    """B and C of all groups once, then all again: the wrong group for most heads."""
    return states.repeat(1, shares.heads // shares.groups // shares.run)


def _replaced(owner: object, name: str, new: object) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(owner, name, new)


def _borderless(name: str) -> Callable[[], AbstractContextManager[Any]]:
    return _replaced(mamba_module, name, _without_borders(getattr(mamba_module, name)))


class _RankOrder:
    of_pack = staticmethod(_rank_order)


FAULTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = MappingProxyType(
    {
        "": nullcontext,
        "zigzag not undone": _replaced(batch_module, "Sharding", _RankOrder),
        "state not reset": _borderless("state_space_scan"),
        "convolution crosses borders": _borderless("causal_convolution"),
        "copies of the wrong group": _replaced(HeadShares, "_copies", _copies_side_by_side),
    }
)
