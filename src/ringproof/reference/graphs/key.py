"""What a graph was captured for: everything that a replay cannot change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.packing.sequences import Capacity


@dataclass(frozen=True, kw_only=True)
class GraphKey:
    """One entry of a graph bank.

    Args:
        layer: Name of the captured part, as its parameters begin: ``layers.3.attention``.
        slot: Which of the microbatches that may wait for their backwards together.
        cp_size: Ranks of the CP group.
        group: These ranks, by their number in the world.
        capacity: Rows and entries of the pack.
        dtype: Of the rows.
        recompute: Whether the backward runs the forward again.
    """

    layer: str
    slot: int
    cp_size: int
    group: tuple[int, ...]
    capacity: Capacity
    dtype: torch.dtype
    recompute: bool

    def __str__(self) -> str:
        """For messages: ``layers.3.attention, slot 0, CP size 4``."""
        return f"{self.layer}, slot {self.slot}, CP size {self.cp_size}"


def key_of(
    layer: str, slot: int, batch: PackedBatch, *, dtype: torch.dtype, recompute: bool
) -> GraphKey:
    """The key of a part for microbatches like this one, which has metadata."""
    assert batch.metadata is not None, "a bank is made for static microbatches"
    return GraphKey(
        layer=layer,
        slot=slot,
        cp_size=batch.group.size,
        group=tuple(dist.get_process_group_ranks(batch.group.flat)),
        capacity=batch.metadata.capacity,
        dtype=dtype,
        recompute=recompute,
    )
