"""Faults of groups: a module works with another CP group than its microbatch's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from ringproof.reference.attention import blocks
from ringproof.reference.attention import plan as attention_plan
from ringproof.reference.attention.attention import planned_attention
from ringproof.reference.attention.plan import AttentionPlan
from ringproof.reference.attention.steps import Step
from ringproof.reference.model import attention, moe
from ringproof.reference.model import batch as model_batch
from ringproof.reference.model.attention import Attention
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.mamba import Mamba
from ringproof.reference.packing.capacity import PADDING
from ringproof.reference.topology.dynamic import ContextParallelGroup
from ringproof.reference.training import trainer
from smoke.faults.seams import Predecessor, Site, own_pack, seen_by

MOST_ENTRIES = 64


def positions_over(batch: PackedBatch, size: int, place: int) -> PackedBatch:
    """Positions as RoPE takes them from a group: a rank's rows of each sequence are its chunks
    ``place`` and ``2 * size - 1 - place``.
    """
    positions = batch.positions.clone()
    for entry in batch.sequences.unique():
        rows = (batch.sequences == entry).nonzero().flatten()
        half = len(rows) // 2
        starts = (place * half, (2 * size - 1 - place) * half)
        chunks = (torch.arange(half), torch.arange(len(rows) - half))
        both = zip(starts, chunks, strict=True)
        positions[rows] = torch.cat([start + chunk for start, chunk in both]).to(positions)
    return replace(batch, positions=positions)


def rope_of_static_group(site: Site) -> Any:
    layout = site.options.parallel.layout
    place = layout.coordinate("cp", site.rank.rank)
    return seen_by(Attention, lambda batch: positions_over(batch, layout.cp, place))


def rope_of_static_group_for_one(site: Site) -> Any:
    layout = site.options.parallel.layout
    place = layout.coordinate("cp", site.rank.rank)

    def change(batch: PackedBatch) -> PackedBatch:
        return positions_over(batch, layout.cp, place) if batch.group.size == 1 else batch

    return seen_by(Attention, change)


def attention_keeps_larger_group(site: Site) -> Any:
    """The group alone is stale, not the pack: attention is called with both."""
    call, before = attention.attend, Predecessor()

    def attend(q: Any, k: Any, v: Any, batch: PackedBatch, **options: Any) -> Any:
        held = before.of(batch).group
        with mock.patch.object(attention, "planned_attention", _with_group(held, batch.comm_type)):
            return call(q, k, v, batch, **options)

    return mock.patch.object(attention, "attend", attend)


def _with_group(held: ContextParallelGroup, comm_type: str) -> Any:
    def changed(q: Any, k: Any, v: Any, plan: AttentionPlan, options: Any) -> Any:
        group = held.of_type(comm_type)
        stale = attention_plan.plan_attention(plan.cut, comm_type=comm_type, group=group)
        return planned_attention(q, k, v, stale, options)

    return changed


def left_alone(site: Site, batch: PackedBatch, before: PackedBatch) -> PackedBatch:
    """The microbatch as a rank takes it that still has the group of one of the one before."""
    if before.group.size > 1 or batch.group.size == 1:
        return batch
    return replace(batch, group=site.alone, packed=own_pack(batch))


def attention_keeps_group_of_one(site: Site) -> Any:
    before = Predecessor()
    return seen_by(Attention, lambda batch: left_alone(site, batch, before.of(batch)))


def mamba_keeps_group_of_one(site: Site) -> Any:
    before = Predecessor()
    return seen_by(Mamba, lambda batch: left_alone(site, batch, before.of(batch)))


def evaluation_keeps_group_of_one(site: Site) -> Any:
    """As after a training whose last microbatch ran on groups of one."""
    evaluate = trainer.evaluate_microbatches

    def changed(runner: Any, batches: list[PackedBatch]) -> Any:
        return evaluate(runner, [left_alone(site, batch, batches[-1]) for batch in batches])

    return mock.patch.object(trainer, "evaluate_microbatches", changed)


def mamba_takes_rows_as_they_arrive(site: Site) -> Any:
    return seen_by(Mamba, lambda batch: replace(batch, partition="contiguous"))


def mamba_goes_on_over_borders(site: Site) -> Any:
    row_segments = model_batch.row_segments

    def changed(*arguments: Any) -> torch.Tensor:
        return row_segments(*arguments).clamp(PADDING, 0)

    return mock.patch.object(model_batch, "row_segments", changed)


def one_group_for_two_levels(site: Site) -> Any:
    return mock.patch.object(ContextParallelGroup, "of_type", lambda self, comm_type: self.flat)


def ring_in_the_other_order(site: Site) -> Any:
    """The table expects the successor's block first; the ring brings the predecessor's."""
    step_table = attention_plan.step_table

    def changed(*arguments: Any, **options: Any) -> tuple[Step, ...]:
        own, *others = step_table(*arguments, **options)
        return (own, *reversed(others))

    return mock.patch.object(attention_plan, "step_table", changed)


def ring_loses_gradients(site: Site) -> Any:
    """Of what a block has gathered on its way, the last rank's part alone comes home."""

    def add(self: Any, gradient: torch.Tensor) -> None:
        if self._pending:
            self.total()
        self._sent, self._received = gradient, torch.empty_like(gradient)
        self._pending = self._communicator.shift(
            self._sent, self._received, tag=blocks.GRADIENT_TAG
        )

    return mock.patch.object(blocks._RingSink, "add", add)


def padding_left_undefined(site: Site) -> Any:
    attend = attention.attend

    def changed(q: Any, k: Any, v: Any, batch: PackedBatch, **options: Any) -> torch.Tensor:
        out = attend(q, k, v, batch, **options)
        return torch.where(batch.real[:, None, None], out, torch.nan)

    return mock.patch.object(attention, "attend", changed)


def router_counts_own_rows(site: Site) -> Any:
    return mock.patch.object(moe, "counting_groups", lambda batch, tensor_parallel: ())


def router_counts_over_domain(site: Site) -> Any:
    """Room for as many sequences everywhere: microbatches of a domain have different numbers."""
    return _balance_loss(lambda: {"entries": MOST_ENTRIES, "groups": (site.groups.domain,)})


@contextmanager
def router_counts_padding(site: Site) -> Iterator[None]:
    call = moe.balance_loss

    def changed(p: Any, chosen: Any, sequences: Any, real: Any, **options: Any) -> torch.Tensor:
        return call(p, chosen, sequences, torch.ones_like(real), **options)

    with ExitStack() as changes:
        changes.enter_context(mock.patch.object(moe, "balance_loss", changed))
        yield


def _balance_loss(other: Any) -> Any:
    call = moe.balance_loss

    def changed(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        return call(*tensors, **{**options, **other()})

    return mock.patch.object(moe, "balance_loss", changed)
