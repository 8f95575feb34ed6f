"""Masks from tensors, which hold for every pack of a group's fixed size.

Two tensors, the sequence and the position of each row, decide which keys a query sees. They are
read when the kernel runs, so a graph that is replayed after they were overwritten computes the
other pack.

The mask does not depend on the order of the rows of a rank, so a head exchange need not sort the
rows that it gathers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ringproof.reference.attention.kernels import AttentionKernel, TensorTriple, row_blocks
from ringproof.reference.attention.merge import accumulation_dtype
from ringproof.reference.packing.capacity import PADDING


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
        keys: Sequence and position of the key rows, ``[T]`` each.
    """

    queries: tuple[torch.Tensor, torch.Tensor]
    keys: tuple[torch.Tensor, torch.Tensor]
    causal: bool

    def hidden(self, rows: slice = slice(None)) -> torch.Tensor:
        """``[rows, T]`` bool: another sequence, padding, or after the query."""
        query_sequences, query_positions = (tensor[rows] for tensor in self.queries)
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
class MaskedKernel:
    """A kernel under a mask, a block of query rows after the other: memory linear in the rows.

    A row that sees nothing gets a zero output, an LSE of minus infinity and zero gradients. Rows
    of padding may hold anything, and are replaced before the first product: in one, a weight of
    zero would not keep NaN out.
    """

    mask: RowMask
    kernel: AttentionKernel

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``ReferenceKernel``."""
        q, k, v = self._without_padding(q, k, v)
        parts = []
        for rows in row_blocks(q.shape[1], k.shape[1]):
            hidden = self.mask.hidden(rows)
            out, lse = self.kernel.forward(
                q[:, rows], k, v, causal=causal, scale=scale, hidden=hidden[None]
            )
            blind = hidden.all(1)[:, None]
            out = out.masked_fill(blind.unsqueeze(-1), 0)
            parts.append((out, lse.masked_fill(blind, -torch.inf)))
        outs, sums = zip(*parts, strict=True)
        return torch.cat(outs, dim=1), torch.cat(sums, dim=1)

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: TensorTriple,
        out: torch.Tensor,
        lse: torch.Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> TensorTriple:
        """See ``ReferenceKernel``; gradients in the accumulation type."""
        q, k, v = self._without_padding(*inputs)
        grad_out = self.mask.of_queries(grad_out)
        lse = lse.masked_fill(lse == -torch.inf, 0)  # so that hidden scores minus it are no NaN
        dtype = accumulation_dtype(q.dtype)
        dq, dk, dv = (torch.zeros(t.shape, dtype=dtype, device=t.device) for t in inputs)
        for rows in row_blocks(q.shape[1], k.shape[1]):
            parts = self.kernel.backward(
                grad_out[:, rows],
                (q[:, rows], k, v),
                out[:, rows],
                lse[:, rows],
                causal=causal,
                scale=scale,
                hidden=self.mask.hidden(rows)[None],
            )
            dq[:, rows] = parts[0]
            dk += parts[1]
            dv += parts[2]
        return dq, dk, dv

    def _without_padding(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> TensorTriple:
        return self.mask.of_queries(q), self.mask.of_keys(k), self.mask.of_keys(v)


def _blank(x: torch.Tensor, away: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(away.view(-1, *(1,) * (x.dim() - 2)), 0)
