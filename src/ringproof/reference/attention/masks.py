"""Steps whose masks come from tensors: the same calls for every pack of a group's fixed size.

A step table (``steps``) is integers of one pack, which a captured graph would bake in. Here a step
is one tile of all local rows and all rows of the block, and who sees whom follows from two tensors:
of each row the sequence and the position. They are read when the kernel runs, so a graph that is
replayed after they were overwritten computes the other pack.

The order of rows within a rank says nothing here. So no head exchange has to sort what it gathers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ringproof.reference.attention.kernels import Gradients, ReferenceKernel
from ringproof.reference.attention.steps import Step, Tile
from ringproof.reference.packing.capacity import PADDING
from ringproof.reference.packing.partition import Span


@dataclass(frozen=True, eq=False)
class RowTable:
    """What the ``R`` rows of each of ``N`` ranks are.

    Args:
        sequences: ``[N, R]`` int64, number of the row's sequence, or :data:`PADDING`.
        positions: ``[N, R]`` int64, the row's position in it.
    """

    sequences: torch.Tensor
    positions: torch.Tensor

    def gathered(self, inner_size: int) -> RowTable:
        """The rows over the outer ranks, once each inner group has gathered its own."""
        rows = inner_size * self.sequences.shape[1]
        return RowTable(self.sequences.view(-1, rows), self.positions.view(-1, rows))


@dataclass(frozen=True, eq=False)
class RowMask:
    """Which of ``S`` queries see which of ``T`` keys.

    Args:
        queries: Sequences and positions of the query rows, ``[S]`` each.
        keys: Of the key rows, ``[T]`` each.
        causal: Hide keys that come after the query.
    """

    queries: tuple[torch.Tensor, torch.Tensor]
    keys: tuple[torch.Tensor, torch.Tensor]
    causal: bool

    def hidden(self) -> torch.Tensor:
        """``[S, T]`` bool: another sequence, padding, or after the query."""
        query_sequences, query_positions = self.queries
        key_sequences, key_positions = self.keys
        hidden = query_sequences[:, None] != key_sequences
        hidden = hidden | (query_sequences == PADDING)[:, None]  # equal numbers of two paddings
        if self.causal:
            hidden = hidden | (key_positions > query_positions[:, None])
        return hidden

    def of_queries(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, S, …]`` with zeros in rows of padding, whatever stood there."""
        return _blank(x, self.queries[0] == PADDING)

    def of_keys(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, T, …]`` with zeros in rows of padding, whatever stood there."""
        return _blank(x, self.keys[0] == PADDING)


@dataclass(frozen=True)
class MaskedKernel(ReferenceKernel):
    """The formula under a mask; any data type, any device. Materialises ``S x T`` scores.

    A row that sees nothing gets a zero output, an LSE of minus infinity and zero gradients. Rows
    of padding may hold anything, and are replaced before the first product: in one, a weight of
    zero would not keep NaN out.

    Args:
        mask: Of the rows that the calls are about.
    """

    mask: RowMask
    name = "masked"

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``AttentionKernel``."""
        q, k, v = self._without_padding(q, k, v)
        out, lse = super().forward(q, k, v, causal=causal, scale=scale)
        return out.masked_fill((lse == -torch.inf).unsqueeze(-1), 0), lse

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: Gradients,
        out: torch.Tensor,
        lse: torch.Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> Gradients:
        """See ``AttentionKernel``."""
        return super().backward(
            self.mask.of_queries(grad_out),
            self._without_padding(*inputs),
            out,
            lse.masked_fill(lse == -torch.inf, 0),  # so that hidden scores minus it are no NaN
            causal=causal,
            scale=scale,
        )

    def scores(
        self, q: torch.Tensor, k: torch.Tensor, *, causal: bool, scale: float
    ) -> torch.Tensor:
        """See ``ReferenceKernel``."""
        found = super().scores(q, k, causal=causal, scale=scale)
        return found.masked_fill(self.mask.hidden(), -torch.inf)

    def _without_padding(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Gradients:
        return self.mask.of_queries(q), self.mask.of_keys(k), self.mask.of_keys(v)


def masked_steps(table: RowTable, rank: int, *, causal: bool) -> tuple[Step, ...]:
    """The steps of one rank, in the order of ``step_table``, each of one masked tile.

    Args:
        table: The rows of the ranks among which blocks move.
        rank: Index among them.
        causal: Hide keys that come after the query.
    """
    size, rows = table.sequences.shape
    everything = Span(0, rows)
    steps = []
    for step in range(size):
        source = (rank - step) % size
        queries = table.sequences[rank], table.positions[rank]
        keys = table.sequences[source], table.positions[source]
        tile = Tile(everything, everything, causal=False, mask=RowMask(queries, keys, causal))
        steps.append(Step(source, (tile,)))
    return tuple(steps)


def _blank(x: torch.Tensor, away: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(away.view(-1, *(1,) * (x.dim() - 2)), 0)
