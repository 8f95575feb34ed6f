"""Rotary position embedding (arXiv 2104.09864) from the positions that come with a microbatch.

There is no table that outlives a call, no offset and no group: a row's position in its own sequence
is all that matters, wherever CP has put the row. Upstream computed positions from a CP group, and
its Dynamic CP once took the static one; the error was silent.
"""

from __future__ import annotations

import torch


def rotation(
    positions: torch.Tensor, width: int, base: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every row's angles.

    Pair ``j`` of a head turns by ``position * base ** (-2 j / width)``.

    Args:
        positions: ``[R]`` int64.
        width: Of what is rotated; even.
        base: Of the frequencies.
        dtype: Of the model. Angles are computed in float64 for float64, else in float32.

    Returns:
        Two tensors ``[R, 1, width / 2]``, to be broadcast over heads.
    """
    wide = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, width, 2, dtype=wide, device=positions.device) / width
    angles = positions.to(wide).unsqueeze(-1) * base**-exponents
    return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn each pair of channels by its row's angle; pair ``j`` is channels ``j``, ``j + D / 2``.

    Args:
        x: ``[R, H, D]``.
        cosine: ``[R, 1, D / 2]``, of :func:`rotation`.
        sine: The same.

    Returns:
        ``[R, H, D]`` in the data type of ``x``.
    """
    left, right = x.to(cosine.dtype).chunk(2, dim=-1)
    turned = torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
    return turned.to(x.dtype)
