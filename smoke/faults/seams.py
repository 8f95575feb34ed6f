"""Where faults are injected: functions and attributes of the reference, replaced for one run.

Nothing here changes a file of the product. A fault is a context manager over a :class:`Site`; it
replaces what a module looks up by name, and puts it back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import nn

from ringproof.harness.cluster import RankContext
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.topology.dynamic import ContextParallelGroup, DynamicGroups
from ringproof.reference.training import trainer
from ringproof.reference.training.assembly import Assembly
from ringproof.reference.training.gradients import ReductionGroups, TrainedParameter
from ringproof.reference.training.options import TrainOptions
from ringproof.reference.training.schedules import StepPlan

Change = Callable[[PackedBatch], PackedBatch]
Parameters = tuple[TrainedParameter, ...]


@dataclass
class Site:
    """One rank while a fault is in place.

    Args:
        rank: Which.
        options: Of the run.
        parts: What the rank has assembled; known as soon as the run has.
    """

    rank: RankContext
    options: TrainOptions
    parts: list[Assembly] = field(default_factory=list)

    @property
    def groups(self) -> DynamicGroups:
        """The rank's CP groups."""
        return self.parts[-1].groups

    @property
    def alone(self) -> ContextParallelGroup:
        """Its group of one."""
        return self.groups.group(1)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Learn what the run assembles."""

        def learn(parts: Assembly) -> Assembly:
            self.parts.append(parts)
            return parts

        with assembled(learn):
            yield


def assembled(change: Callable[[Assembly], Assembly]) -> AbstractContextManager[Any]:
    """A run goes on with other parts than it has assembled."""
    assembly = trainer.assembly

    @contextmanager
    def changed(*arguments: Any, **options: Any) -> Iterator[Assembly]:
        with assembly(*arguments, **options) as parts:
            yield change(parts)

    return mock.patch.object(trainer, "assembly", changed)


def seen_by(module: type[nn.Module], change: Change) -> AbstractContextManager[Any]:
    """A module is given another microbatch than the rest of the model."""
    forward: Any = module.forward

    def changed(self: nn.Module, x: torch.Tensor, batch: PackedBatch) -> Any:
        return forward(self, x, change(batch))

    return mock.patch.object(module, "forward", changed)


def routed(
    change: Callable[[StepPlan, list[PackedBatch]], list[PackedBatch]],
) -> AbstractContextManager[Any]:
    """Microbatches are changed after their rows have arrived."""
    route = trainer.route

    def changed(step: StepPlan, *arguments: Any) -> list[PackedBatch]:
        return change(step, route(step, *arguments))

    return mock.patch.object(trainer, "route", changed)


def planned(change: Callable[[StepPlan], StepPlan]) -> AbstractContextManager[Any]:
    """Every rank makes another plan."""
    plan_step = trainer.plan_step

    def changed(*arguments: Any, **options: Any) -> StepPlan:
        return change(plan_step(*arguments, **options))

    return mock.patch.object(trainer, "plan_step", changed)


def reduced(
    before: Callable[[Parameters], Parameters] = lambda parameters: parameters,
    after: Callable[[Parameters, ReductionGroups], object] = lambda parameters, groups: None,
) -> AbstractContextManager[Any]:
    """Gradients are reduced as those of other parameters, and changed after."""
    reduce_gradients = trainer.reduce_gradients

    def changed(parameters: Parameters, groups: ReductionGroups) -> None:
        reduce_gradients(before(parameters), groups)
        after(parameters, groups)

    return mock.patch.object(trainer, "reduce_gradients", changed)


class Predecessor:
    """Which microbatch came before the one that a module sees now."""

    def __init__(self) -> None:
        self._now: PackedBatch | None = None
        self._before: PackedBatch | None = None

    def of(self, batch: PackedBatch) -> PackedBatch:
        """The microbatch before; of the first one, itself."""
        if batch is not self._now:
            self._before, self._now = self._now or batch, batch
        assert self._before is not None
        return self._before


def own_pack(batch: PackedBatch) -> PackedSequences:
    """The rows of one rank as a pack of their own: what a group of one takes them for."""
    entries = len(batch.packed.lengths)
    lengths = torch.tensor(batch.packed.lengths, device=batch.positions.device)
    computed = batch.positions < lengths[batch.sequences]
    return pack_of(
        torch.bincount(batch.sequences[computed], minlength=entries).tolist(),
        torch.bincount(batch.sequences, minlength=entries).tolist(),
    )


def pack_of(real: list[int], rows: list[int]) -> PackedSequences:
    """A pack of sequences with these real and padded lengths."""
    return PackedSequences(
        cu_seqlens=tuple(itertools.accumulate(real, initial=0)),
        cu_seqlens_padded=tuple(itertools.accumulate(rows, initial=0)),
        max_seqlen=max(rows),
        sequences=len(rows),
    )
