"""RMS norm (arXiv 1910.07467), whose weight may have only a part of its gradient on a TP rank.

The weight is replicated over TP, but its inputs may differ between ranks:

==============================  ==========================================  =================
acts on                         without sequence parallelism                with it
==============================  ==========================================  =================
rows of the residual stream     all rows on each rank: gradient complete    own rows: partial
heads (q and k norms)           own heads: partial                          own heads: partial
==============================  ==========================================  =================

A partial gradient has to be summed over TP. Otherwise each rank silently trains its own copy of the
weight, and the copies drift apart.
"""

from __future__ import annotations

import torch
from torch import nn

from ringproof.reference.model.parameters import Builder


class RMSNorm(nn.Module):
    """``x / rms(x) * weight`` over the last dimension; see the module for ``over_heads``."""

    def __init__(
        self, builder: Builder, width: int, epsilon: float, *, over_heads: bool = False
    ) -> None:
        super().__init__()
        self.epsilon = epsilon
        partial = over_heads or builder.tensor_parallel.rows_are_cut
        self.weight = builder.parameter("weight", (width,), fill=1.0, partial=partial)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize ``[..., width]``."""
        return rms_norm(x, self.weight, self.epsilon)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """``x / sqrt(mean(x ** 2) + epsilon) * weight``, with statistics in float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * scale).to(x.dtype) * weight
