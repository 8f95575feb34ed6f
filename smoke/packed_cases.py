"""What the ranks of the packed tests run: module-level functions, sent by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ringproof.harness.cluster import RankContext
from ringproof.reference.attention import parity as parity_module
from ringproof.reference.attention.attention import context_parallel_attention
from ringproof.reference.attention.case import ParityCase
from ringproof.reference.attention.demonstration import GROUPS
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.topology.context import parallel_context
from ringproof.reference.topology.layout import RankLayout


def parity_with(
    rank: RankContext, *, case: ParityCase, packs: Mapping[str, PackedSequences]
) -> dict[str, Any]:
    """Parity of a case whose attention is told of other packs, by name."""
    layout = RankLayout(cp=case.world)
    with parallel_context(layout, case.hierarchical_sizes, descriptions=GROUPS) as context:
        return {
            name: parity_module.measure(case, context, rank.device, packed=packed)
            for name, packed in packs.items()
        }


def attend_packed(
    rank: RankContext, *, shape: tuple[int, ...], packed: PackedSequences | None
) -> None:
    """One forward of rows of that shape."""
    q = torch.zeros(shape, device=rank.device)
    with parallel_context(RankLayout(cp=rank.world_size), descriptions=GROUPS) as context:
        context_parallel_attention(
            q, q, q, comm_type="p2p", group=context.context_parallel_group, packed=packed
        )
