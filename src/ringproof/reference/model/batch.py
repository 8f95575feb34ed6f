"""One microbatch as one rank of its CP group holds it: rows, metadata and the group, together.

The group travels with the microbatch. No module keeps one, so none can use that of another
microbatch, and nothing has to be restored afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ringproof.errors import InputError
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.topology.dynamic import ContextParallelGroup

IGNORED = -100
"""Label of a row that predicts nothing (torch's ``cross_entropy`` default)."""


@dataclass(frozen=True)
class Totals:
    """What losses are divided by: counts over the whole global batch, whatever its packing.

    Args:
        tokens: Real tokens.
        predictions: Rows with a label at each depth; 0 is the next token, others are MTP's.
    """

    tokens: int
    predictions: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """A microbatch on one rank: ``R`` rows of the pack that its CP group shares.

    Args:
        packed: The sequences in the rows of the whole group.
        group: The ranks that share them.
        comm_type: How attention communicates over the group.
        partition: How rows are cut over it, ``zigzag`` or ``contiguous``.
        positions: ``[R]`` int64, position of each row in its sequence.
        sequences: ``[R]`` int64, entry of the pack that each row belongs to.
        real: ``[R]`` bool, whether the row holds a token of the data.
        tokens: ``[R]`` int64, or ``None`` on a stage that embeds nothing.
        future: ``[1 + depths, R]`` int64, or ``None`` where no loss is computed: at depth ``d``
            the token ``1 + d`` places later in the same sequence, :data:`IGNORED` where it ends.
        totals: Of the global batch.

    Raises:
        InputError: A tensor does not have the pack's rows.
    """

    packed: PackedSequences
    group: ContextParallelGroup
    comm_type: str
    partition: str
    positions: torch.Tensor
    sequences: torch.Tensor
    real: torch.Tensor
    tokens: torch.Tensor | None
    future: torch.Tensor | None
    totals: Totals

    def __post_init__(self) -> None:
        for name in ("positions", "sequences", "real", "tokens", "future"):
            tensor: torch.Tensor | None = getattr(self, name)
            if tensor is not None and tensor.shape[-1] != self.rows:
                raise InputError(
                    name,
                    tuple(tensor.shape),
                    f"the pack has {self.rows} rows on each of {self.group.size} ranks",
                    "cut it by the same pack",
                )

    @property
    def rows(self) -> int:
        """Rows on this rank, ``R``."""
        return self.packed.rows // self.group.size
