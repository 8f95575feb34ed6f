"""What the ranks of the static path's tests run: attention, whole steps, streams of operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from checks.model.whole_model import whole
from ringproof.harness.cluster import RankContext
from ringproof.reference.attention import parity as parity_module
from ringproof.reference.attention.attention import AttentionOptions, context_parallel_attention
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.masks import RowMask, RowTable
from ringproof.reference.attention.parity import demonstrate
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig
from ringproof.reference.model.static import batch_tensors, load, static_batch
from ringproof.reference.packing.capacity import row_arrays, to_capacity
from ringproof.reference.packing.sequences import Capacity, PackedSequences, pack
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.dynamic import DynamicGroups, dynamic_groups
from ringproof.reference.topology.layout import RankLayout
from smoke import model_cases
from smoke.model_batches import random_sequences, totals
from smoke.model_cases import ModelCase, Step, own_groups
from smoke.static_packs import capacity_batch, first_difference, op_stream

CAPACITY = Capacity(rows=128, entries=7)
PACKS = ((13, 1, 32, 7), (48, 5))
"""Lengths of two packs; both leave a tail."""
READ_BACK = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount")


def parity(rank: RankContext, *, cases: Sequence[ParityCase], fault: str) -> list[dict[str, Any]]:
    """Parity of attention that is given tensors in place of a pack's integers.

    With ``stale`` the tensors say what the other pack was, with ``hidden tail`` only as far as the
    sequences go do they say what this one is, with ``poison`` padding is not taken out of keys and
    values.
    """

    def attend(*qkv: Any, packed: PackedSequences, options: AttentionOptions, **rest: Any) -> Any:
        table = _table(packed, rank.world_size, options.partition)
        if fault in ("stale", "hidden tail"):
            old = _table(fixed_pack(0), rank.world_size, options.partition)
            ours = packed.cu_seqlens_padded[packed.sequences] // rank.world_size
            kept = 0 if fault == "stale" else ours
            for new, left in ((table.sequences, old.sequences), (table.positions, old.positions)):
                new[:, kept:] = left[:, kept:]
        return context_parallel_attention(*qkv, table=table, options=options, **rest)

    poisoned = patch.object(RowMask, "of_keys", lambda self, x: x)
    with (
        patch.object(parity_module, "context_parallel_attention", attend),
        poisoned if fault == "poison" else nullcontext(),
    ):
        return demonstrate(cases, rank.device)


def fixed_pack(which: int) -> PackedSequences:
    """One of the two packs, at capacity."""
    return to_capacity(pack(PACKS[which], multiple=16), CAPACITY)


def _table(packed: PackedSequences, size: int, partition: str) -> RowTable:
    arrays = row_arrays(packed, size, partition)
    return RowTable(torch.from_numpy(arrays.sequences), torch.from_numpy(arrays.positions))


def step(rank: RankContext, *, case: ModelCase, stale: str = "") -> Step:
    """A training step on static microbatches; one for each CP size, refilled in turn.

    Tensors of a microbatch whose names begin with ``stale`` are not overwritten.
    """

    def batches(
        case: ModelCase, groups: DynamicGroups, device: torch.device
    ) -> Iterator[PackedBatch]:
        return _static_batches(case, groups, device, stale)

    with patch.object(model_cases, "batches", batches):
        return model_cases.step(rank, case=case)


def _static_batches(
    case: ModelCase, groups: DynamicGroups, device: torch.device, stale: str
) -> Iterator[PackedBatch]:
    depths = case.config.mtp_depths
    sequences = random_sequences()
    slots: dict[int, PackedBatch] = {}
    for size, chosen in own_groups(case, groups.domain_rank):
        batch = capacity_batch(
            [sequences[index] for index in chosen],
            groups.group(size),
            CAPACITY,
            comm_type=case.comm_type,
            partition=case.partition,
            depths=depths,
            total=totals(sequences, depths),
            device=device,
        )
        slot = slots.setdefault(size, static_batch(batch))
        tensors = batch_tensors(slot)
        kept = {n: t.clone() for n, t in tensors.items() if stale and n.startswith(stale)}
        load(slot, batch)
        for name, tensor in kept.items():
            tensors[name].copy_(tensor)
        yield slot


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
