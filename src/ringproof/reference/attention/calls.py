"""Kernel calls that compute several tiles of a step at once.

The tiles of a step (`steps`) belong to different sequences. Both kinds of call read their rows by
index tensors that the plan holds, so that a layer makes none. Memory is linear in the rows: the
scores are never stored. Which tiles go into which call is decided in `packed`.

On a GPU, `VarlenTiles` calls ``aten::_flash_attention_forward``, the operator under
``torch.nn.attention.varlen`` and a copy of the flash-attn package's kernel. It is checked against
a stand-in of the operator on CPUs; no GPU has run it yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ringproof.reference.attention.kernels import FlashKernel, TensorTriple, common_width, padded


@dataclass(frozen=True, eq=False)
class TileBatch:
    """Tiles of one shape, after padding, as a batch of ``n`` with ``S`` rows and ``T`` columns.

    Padded rows repeat the first row of their tile, so that they hold what the tile may read.
    What is computed for them is thrown away, and their gradients are zero.

    Args:
        rows: ``[m]`` int64, the query rows of all tiles, each once.
        columns: ``[n * T]`` int64, key/value rows.
        places: ``[n * S]`` int64, query row of each place of the batch.
        real: ``[m]`` int64, the places that are not padding, in the order of ``rows``.
        shape: ``(n, S, T)``.
        hidden: ``[n, 1, T]`` bool, which columns are padding; ``None`` where none is, or where the
            causal mask hides those that are.
        causal: Square lower-triangular masks; otherwise every row sees every column.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    places: torch.Tensor
    real: torch.Tensor
    shape: tuple[int, int, int]
    hidden: torch.Tensor | None
    causal: bool

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output ``[1, m, H, V]`` and LSE ``[1, m, H]`` of the rows, over this block's keys."""
        out, lse = FlashKernel().forward(
            *self._stacked(q, k, v), causal=self.causal, scale=scale, hidden=self.hidden
        )
        return self._of_rows(out), self._of_rows(lse)

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: TensorTriple,
        result: tuple[torch.Tensor, torch.Tensor],
        scale: float,
    ) -> TensorTriple:
        """Summands of dq of ``rows``, and of dk and dv of ``columns``."""
        out, lse = (self._of_places(tensor) for tensor in result)
        grad = self._of_places(grad_out.index_select(1, self.rows), self.real)
        dq, dk, dv = FlashKernel().backward(
            grad,
            self._stacked(*inputs),
            out,
            lse,
            causal=self.causal,
            scale=scale,
            hidden=self.hidden,
        )
        return self._of_rows(dq), dk.flatten(0, 1)[None], dv.flatten(0, 1)[None]

    def _stacked(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> TensorTriple:
        keys, values = (
            t[0].index_select(0, self.columns).unflatten(0, (self.shape[0], -1)) for t in (k, v)
        )
        return self._of_places(q), keys, values

    def _of_places(self, x: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
        """``[1, R, …]`` to ``[n, S, …]``; given ``real``, zeros in all other places."""
        if real is None:
            stacked = x[0].index_select(0, self.places)
        else:
            stacked = x.new_zeros(len(self.places), *x.shape[2:]).index_copy_(0, real, x[0])
        return stacked.unflatten(0, (self.shape[0], -1))

    def _of_rows(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        return (flat if len(self.real) == len(flat) else flat.index_select(0, self.real))[None]


@dataclass(frozen=True, eq=False)
class VarlenTiles:
    """All tiles of a step with one kind of mask, for the variable-length kernel of a GPU.

    Args:
        rows: ``[m]`` int64, the query rows of all tiles, one tile after the other.
        columns: ``[c]`` int64, key/value rows.
        cu_rows: ``[n + 1]`` int32, query rows before each tile, and in total.
        cu_columns: ``[n + 1]`` int32, the same for columns.
        most: Rows and columns of the longest tile.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    cu_rows: torch.Tensor
    cu_columns: torch.Tensor
    most: tuple[int, int]
    causal: bool

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`TileBatch`."""
        out, lse = torch.ops.aten._flash_attention_forward(
            *self._rows_of(q, k, v), self.cu_rows, self.cu_columns, *self.most,
            0.0, self.causal, False, scale=scale,
        )[:2]  # fmt: skip
        return out[None, ..., : v.shape[-1]], lse.t()[None]

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: TensorTriple,
        result: tuple[torch.Tensor, torch.Tensor],
        scale: float,
    ) -> TensorTriple:
        """See :class:`TileBatch`."""
        q, k, v = inputs
        width = common_width(q, v)
        out, lse = (tensor[0].index_select(0, self.rows) for tensor in result)
        grad = grad_out[0].index_select(0, self.rows)
        unused = torch.empty(2, dtype=torch.int64, device=q.device)  # RNG state, no dropout
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            padded(grad, width), *self._rows_of(q, k, v), padded(out, width), lse.t().contiguous(),
            self.cu_rows, self.cu_columns, *self.most, 0.0, self.causal, unused, unused,
            scale=scale,
        )  # fmt: skip
        return (
            dq[None, ..., : q.shape[-1]],
            dk[None, ..., : k.shape[-1]],
            dv[None, ..., : v.shape[-1]],
        )

    def _rows_of(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> TensorTriple:
        """Rows and columns, one tile after the other, of the width that the kernel takes."""
        width = common_width(q, v)
        queries, keys, values = (
            padded(tensor[0].index_select(0, index), width)
            for tensor, index in ((q, self.rows), (k, self.columns), (v, self.columns))
        )
        return queries, keys, values
