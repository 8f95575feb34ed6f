"""One microbatch as one rank of its CP group holds it: rows, metadata and the group.

The group travels with the microbatch. No module stores one, so none can use that of another
microbatch. The attention plan depends on the pack alone: it is computed once and kept in the batch.

The pack and the totals are given twice: ``packed`` and ``totals`` are integers for eager code,
``metadata`` has the same facts as tensors of a fixed size. If a microbatch has metadata, no layer
uses the integers, so that a graph captured with one pack computes any other of the same capacity
once its tensors are copied in (``static``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from ringproof.errors import InputError
from ringproof.reference.attention.masks import RowTable
from ringproof.reference.attention.plan import AttentionPlan, GroupRows, plan_attention
from ringproof.reference.packing.sequences import Capacity, PackedSequences
from ringproof.reference.topology.dynamic import ContextParallelGroup

IGNORED = -100
"""Label of a row that predicts nothing (torch's ``cross_entropy`` default)."""


@dataclass(frozen=True)
class Totals:
    """Divisors of losses: counts over the whole global batch, whatever its packing.

    Args:
        tokens: Real tokens.
        predictions: Rows with a label at each depth; 0 is the next token, others are MTP's.
    """

    tokens: int
    predictions: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Metadata:
    """A pack of fixed capacity, and the totals, as tensors; the same on all ranks of the CP group.

    ``N`` ranks of ``R`` rows, ``E`` entries. Only ``capacity`` may be a constant of a graph.

    Args:
        capacity: ``N * R`` rows, which are also the ``max_seqlen`` of a kernel, and ``E`` entries.
        table: Sequence and position of each row: ``[N, R]`` int64 each.
        cu_seqlens, cu_seqlens_padded: ``[E + 1]`` int32, for kernels. No layer here uses them.
        tokens: 0-dim int64, see :class:`Totals`.
        predictions: ``[1 + depths]`` int64, see :class:`Totals`.
    """

    capacity: Capacity
    table: RowTable
    cu_seqlens: torch.Tensor
    cu_seqlens_padded: torch.Tensor
    tokens: torch.Tensor
    predictions: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """A microbatch on one rank: ``R`` rows of the pack that its CP group shares.

    Args:
        packed: The sequences in the rows of the whole group.
        group: The ranks that share them.
        comm_type: Communication type of attention.
        partition: Partition of the rows over the group, ``zigzag`` or ``contiguous``.
        positions: ``[R]`` int64, position of each row in its sequence.
        entries: ``[R]`` int64, entry of the pack that each row belongs to, with padding rows
            (for which ``RowTable.sequences`` has ``PADDING``).
        real: ``[R]`` bool, whether the row holds a token of the data.
        tokens: ``[R]`` int64, or ``None`` on a stage that embeds nothing.
        future: ``[1 + depths, R]`` int64, or ``None`` without a loss: at depth ``d`` the token
            ``1 + d`` places later in the same sequence, :data:`IGNORED` where it ends.
        totals: Counts of the global batch.
        metadata: The pack and the totals as tensors, which replace ``packed`` and ``totals``;
            ``None`` for eager code.

    Raises:
        InputError: A tensor does not have the pack's rows, or the metadata are another group's.
    """

    packed: PackedSequences
    group: ContextParallelGroup
    comm_type: str
    partition: str
    positions: torch.Tensor
    entries: torch.Tensor
    real: torch.Tensor
    tokens: torch.Tensor | None
    future: torch.Tensor | None
    totals: Totals
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        if self.metadata is not None:
            shape = tuple(self.metadata.table.sequences.shape)
            if shape[0] != self.group.size or self.metadata.capacity.rows != self.packed.rows:
                problem = f"{shape} is not the pack's {self.packed.rows} rows on {self.group.size}"
                raise InputError("metadata", f"{problem} ranks; make them for this pack")
        for name in ("positions", "entries", "real", "tokens", "future"):
            tensor: torch.Tensor | None = getattr(self, name)
            if tensor is not None and tensor.shape[-1] != self.rows:
                problem = f"{tuple(tensor.shape)} is not the pack's {self.rows} rows on a rank"
                raise InputError(name, f"{problem}; divide it like the pack")

    @property
    def rows(self) -> int:
        """Rows on this rank, ``R``."""
        return self.packed.rows // self.group.size

    @cached_property
    def attention_plan(self) -> AttentionPlan:
        """Plan of attention on these rows, made once for all layers.

        Raises:
            InputError: See :func:`~ringproof.reference.attention.plan.plan_attention`.
        """
        static = self.metadata
        return plan_attention(
            GroupRows(
                rows=self.rows,
                packed=None if static else self.packed,
                table=static.table if static else None,
                partition=self.partition,
            ),
            comm_type=self.comm_type,
            group=self.group.of_type(self.comm_type),
            device=self.positions.device,
        )
