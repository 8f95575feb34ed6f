"""Matrix products under TP, without communication: callers use ``copy_to_region`` before and
``reduce_from_region`` after them.

``in`` and ``out`` are the full widths. Weights are ``[out, in]`` as in ``torch.nn.Linear``, without
a bias, drawn with a standard deviation of ``in ** -0.5``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import linear

from ringproof.reference.model.parameters import Builder


class _Product(nn.Module):
    weight: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight)


class ColumnLinear(_Product):
    """Each TP rank computes its own columns of the result.

    It maps ``[R, in]``, after ``copy_to_region``, to ``[R, out / TP]``. ``blocks`` are the full
    widths of the parts of a fused result (such as q, k, v). Each rank then gets its share of every
    part, side by side.
    """

    def __init__(
        self, builder: Builder, in_width: int, out_width: int, blocks: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.weight = builder.parameter(
            "weight", (out_width, in_width), split=0, std=in_width**-0.5, blocks=blocks
        )


class RowLinear(_Product):
    """Each TP rank holds its own columns of the input and computes one addend of the result.

    It maps ``[R, in / TP]`` to ``[R, out]``, a partial sum for ``reduce_from_region``.
    """

    def __init__(self, builder: Builder, in_width: int, out_width: int) -> None:
        super().__init__()
        self.weight = builder.parameter(
            "weight", (out_width, in_width), split=1, std=in_width**-0.5
        )


class ReplicatedLinear(_Product):
    """Each TP rank holds the whole matrix and applies it to the rows that it has.

    It maps ``[r or R, in]`` to ``[r or R, out]``, for the residual stream, where its gradient is
    partial exactly when sequence parallelism divides the rows. Not for the result of
    ``copy_to_region``.
    """

    def __init__(self, builder: Builder, in_width: int, out_width: int) -> None:
        super().__init__()
        partial = builder.tensor_parallel.rows_are_cut
        self.weight = builder.parameter(
            "weight", (out_width, in_width), std=in_width**-0.5, partial=partial
        )
