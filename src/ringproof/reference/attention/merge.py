"""Merges partial attention results.

For a row with partial outputs ``o_i`` and log-sum-exp ``l_i`` over disjoint keys:

    lse = log(sum_i exp(l_i))        out = sum_i exp(l_i - lse) * o_i

which is exact, and stable because no exponent is positive. (Milakov and Gimelshein 2018,
arXiv 1805.02867; as used by ring attention, arXiv 2310.01889.)
"""

from __future__ import annotations

import torch


class PartialSum:
    """Running output and LSE of the local query rows.

    Accumulates in at least float32, so that many bfloat16 partials do not lose bits in the sum.
    Rows that no key has reached yet hold zero output and an LSE of minus infinity.

    Args:
        out_shape: ``[B, S, H, V]``.
        like: Gives device and data type of the partials to come.
    """

    def __init__(self, out_shape: tuple[int, int, int, int], like: torch.Tensor) -> None:
        dtype = accumulation_dtype(like.dtype)
        self.out = torch.zeros(out_shape, dtype=dtype, device=like.device)
        self.lse = torch.full(out_shape[:3], -torch.inf, dtype=dtype, device=like.device)

    def add(self, rows: slice | torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Merge one partial result into some rows.

        Args:
            rows: Local query rows: a slice, or an index tensor with each row once.
            out: ``[B, rows, H, V]``, normalised over the keys it saw.
            lse: ``[B, rows, H]``.
        """
        total_out, total_lse = self.out[:, rows], self.lse[:, rows]
        merged = torch.logaddexp(total_lse, lse)
        total_out.mul_(_weight(total_lse, merged)).add_(out * _weight(lse, merged))
        total_lse.copy_(merged)
        if isinstance(rows, torch.Tensor):  # these rows are a copy
            self.out.index_copy_(1, rows, total_out)
            self.lse.index_copy_(1, rows, total_lse)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays float64; everything else accumulates in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _weight(lse: torch.Tensor, merged: torch.Tensor) -> torch.Tensor:
    """``exp(lse - merged)`` as ``[B, S, H, 1]``; zero where nothing was seen at all."""
    seen = merged.masked_fill(merged == -torch.inf, 0.0)  # keeps -inf minus -inf from being NaN
    return torch.exp(lse - seen).unsqueeze(-1)
