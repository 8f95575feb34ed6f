"""What the ranks of the static path's tests run: attention, whole steps, streams of operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from ringproof.harness.cluster import RankContext
from ringproof.reference.attention.attention import AttentionOptions, context_parallel_attention
from ringproof.reference.attention.demonstration import GROUPS
from ringproof.reference.attention.masks import RowMask, RowTable
from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig
from ringproof.reference.model.stage import build_stage
from ringproof.reference.model.static import batch_tensors, load, static_batch
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.packing.capacity import row_arrays, to_capacity
from ringproof.reference.packing.sequences import Capacity, PackedSequences, pack
from ringproof.reference.topology.context import ParallelContext, parallel_context
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


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """Attention over one pack, by its integers and by tensors.

    Args:
        comm_type, sizes: How it communicates; sizes of ``a2a+p2p``.
        heads, kv_heads: Of queries, of keys and values.
        partition, causal: What is computed.
        fault: ``none``; ``stale`` (the tensors say what the other pack was), ``hidden tail`` (only
            as far as the sequences go do they say what this one is) or ``poison`` (padding is not
            taken out of keys and values).
    """

    comm_type: str
    sizes: tuple[int, ...] = ()
    heads: int = 8
    kv_heads: int = 8
    partition: str = "zigzag"
    causal: bool = True
    fault: str = "none"


def attention(rank: RankContext, *, cases: Sequence[AttentionCase]) -> list[dict[str, float]]:
    """On this rank, how far the two ways are apart, by tensor; infinite where NaN is."""
    return [_attention(rank, case) for case in cases]


def _attention(rank: RankContext, case: AttentionCase) -> dict[str, float]:
    packed, before = (_packed(lengths) for lengths in PACKS[::-1])
    with parallel_context(
        RankLayout(cp=rank.world_size), case.sizes, descriptions=GROUPS
    ) as context:
        by_numbers = _run(case, context, packed, None)
        table = _table(packed, rank.world_size, case)
        if case.fault in ("stale", "hidden tail"):
            old = _table(before, rank.world_size, case)
            kept = 0 if case.fault == "stale" else _rows_of_sequences(packed, table)
            for new, left in zip(_tensors(table), _tensors(old), strict=True):
                new[:, kept:] = left[:, kept:]
        change: AbstractContextManager[Any] = nullcontext()
        if case.fault == "poison":
            change = patch.object(RowMask, "of_keys", lambda self, x: x)
        with change:
            by_tensors = _run(case, context, packed, table)
    return {
        name: _difference(by_tensors[name], right.to(by_tensors[name]))
        for name, right in by_numbers.items()
    }


def _packed(lengths: Sequence[int]) -> PackedSequences:
    return to_capacity(pack(lengths, multiple=16), CAPACITY)


def _table(packed: PackedSequences, size: int, case: AttentionCase) -> RowTable:
    arrays = row_arrays(packed, size, case.partition)
    return RowTable(torch.from_numpy(arrays.sequences), torch.from_numpy(arrays.positions))


def _tensors(table: RowTable) -> tuple[torch.Tensor, torch.Tensor]:
    return table.sequences, table.positions


def _rows_of_sequences(packed: PackedSequences, table: RowTable) -> int:
    """Rows of each rank before the dummy's, under zigzag."""
    return packed.cu_seqlens_padded[packed.sequences] // len(table.sequences)


def _run(
    case: AttentionCase, context: ParallelContext, packed: PackedSequences, table: RowTable | None
) -> dict[str, torch.Tensor]:
    """Forward and backward of this rank's rows; NaN in all rows of padding."""
    group: Any = context.context_parallel_group
    arrays = row_arrays(packed, group.size(), case.partition)
    rank = group.rank()
    if case.comm_type == "a2a+p2p":
        group = context.hierarchical_groups
    generator = torch.Generator().manual_seed(0)
    local = []
    for heads, width in (
        (case.heads, 8),
        (case.kv_heads, 8),
        (case.kv_heads, 12),
        (case.heads, 12),
    ):
        whole = torch.randn(packed.rows, heads, width, generator=generator, dtype=torch.float64)
        mine = whole[torch.from_numpy(arrays.places[rank])]
        mine[torch.from_numpy(arrays.sequences[rank] < 0)] = torch.nan
        local.append(mine)
    q, k, v = (tensor.requires_grad_() for tensor in local[:3])
    out, lse = context_parallel_attention(
        q,
        k,
        v,
        comm_type=case.comm_type,
        group=group,
        packed=packed if table is None else None,
        table=table,
        options=AttentionOptions(causal=case.causal, partition=case.partition),
    )
    out.backward(local[3])
    return {"out": out.detach(), "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}


def _difference(found: torch.Tensor, right: torch.Tensor) -> float:
    differences = (found - right).abs().masked_fill(found == right, 0.0)
    return float(differences.nan_to_num(torch.inf).max())


def step(rank: RankContext, *, case: ModelCase, stale: str = "") -> Step:
    """A training step on static microbatches; one for each CP size, refilled in turn.

    Args:
        rank: This rank.
        case: The step.
        stale: Tensors of a microbatch whose names begin so are not overwritten.
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
        stage = build_stage(
            config,
            layers=range(len(config.layers)),
            first=True,
            last=True,
            seed=0,
            dtype=torch.float64,
            device=rank.device,
            tensor_parallel=TensorParallel(),
        )
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


def largest(errors: Sequence[Mapping[str, float]]) -> float:
    """Over tensors and ranks."""
    return max(value for of_rank in errors for value in of_rank.values())
