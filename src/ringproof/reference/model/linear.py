"""Matrix products under TP. None of them communicates: ``enter`` and ``leave`` are the caller's.

``in`` and ``out`` are the full widths. Weights are ``[out, in]`` as in ``torch.nn.Linear``, without
a bias, drawn with a standard deviation of ``in ** -0.5``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import linear

from ringproof.reference.model.parameters import Builder


class ColumnLinear(nn.Module):
    """Each TP rank computes its own columns of the result.

    Args:
        builder: Scoped to this module.
        in_width: Of the input, on every rank.
        out_width: Of the result over all ranks.
        blocks: Full widths of the parts of a fused result (such as q, k, v): each rank then gets
            its share of every part, side by side.
    """

    def __init__(
        self, builder: Builder, in_width: int, out_width: int, blocks: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.weight = builder.parameter(
            "weight", (out_width, in_width), split=0, std=in_width**-0.5, blocks=blocks
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[R, in] -> [R, out / TP]``; ``x`` has passed ``enter``."""
        return linear(x, self.weight)


class RowLinear(nn.Module):
    """Each TP rank holds its own columns of the input and computes one addend of the result.

    Args:
        builder: Scoped to this module.
        in_width: Of the input over all ranks.
        out_width: Of the result.
    """

    def __init__(self, builder: Builder, in_width: int, out_width: int) -> None:
        super().__init__()
        self.weight = builder.parameter(
            "weight", (out_width, in_width), split=1, std=in_width**-0.5
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[R, in / TP] -> [R, out]``, a partial sum that ``leave`` completes."""
        return linear(x, self.weight)


class ReplicatedLinear(nn.Module):
    """Each TP rank holds the whole matrix and applies it to the rows that it has.

    For the residual stream (``[r, in]`` under sequence parallelism), where its gradient is partial
    exactly when the rows are cut. Not for what has passed ``enter``.

    Args:
        builder: Scoped to this module.
        in_width: Of the input.
        out_width: Of the result.
    """

    def __init__(self, builder: Builder, in_width: int, out_width: int) -> None:
        super().__init__()
        self.weight = builder.parameter(
            "weight",
            (out_width, in_width),
            std=in_width**-0.5,
            partial=builder.tensor_parallel.rows_are_cut,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[r or R, in] -> [r or R, out]``."""
        return linear(x, self.weight)
