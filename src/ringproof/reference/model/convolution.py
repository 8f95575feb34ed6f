"""The short causal convolution of Mamba-2, which starts afresh with each sequence."""

from __future__ import annotations

import torch
from torch.nn import functional

from ringproof.reference.model.segments import PADDING, blank


def causal_convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, segments: torch.Tensor
) -> torch.Tensor:
    """Each channel's weighted sum of a row and the few before it in the same sequence.

    ``y[t] = bias + sum over k of weight[:, K - 1 - k] * x[t - k]``, over those ``t - k`` that are
    rows of the same sequence as ``t``. Rows of padding give zero.

    Args:
        x: ``[T, C]``.
        weight: ``[C, K]``; the last tap belongs to the row itself, as in ``torch.nn.Conv1d``.
        bias: ``[C]``.
        segments: ``[T]``, see :func:`~ringproof.reference.model.segments.row_segments`.

    Returns:
        ``[T, C]``.
    """
    real = segments != PADDING
    x = blank(x, real)
    taps = weight.unbind(1)
    total = bias + taps[-1] * x
    for back in range(1, min(len(taps), len(x))):
        earlier = blank(x[:-back], segments[:-back] == segments[back:])
        total = total + taps[-1 - back] * functional.pad(earlier, (0, 0, back, 0))
    return blank(total, real)
