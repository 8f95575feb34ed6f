"""``x[index] = number`` as a GPU does it: a fill, whose number is a constant of the capture.

On a CPU torch makes a tensor of the number first. That would look like data from the host.
"""

from __future__ import annotations

from numbers import Number
from typing import Any

import torch


def fill_by_number(x: torch.Tensor, index: Any, value: Any) -> bool:
    """Fill and say so, if that is what torch does on a GPU: by slices and integers, or by a mask.

    By indices that are tensors, lists or several masks it first copies the number to the device.

    Args:
        x: Written in place.
        index: As between the brackets.
        value: A number, or anything else.
    """
    if not isinstance(value, Number):
        return False
    pieces = index if isinstance(index, tuple) else (index,)
    if all(_is_basic(piece) for piece in pieces):
        x[index].fill_(value)
        return True
    if not _is_mask(index, x):
        return False
    # Not masked_fill_, whose backward lays gradients out in another way, and so rounds differently.
    x.index_put_((index,), torch.full((), value, dtype=x.dtype, device=x.device))
    return True


def _is_basic(piece: Any) -> bool:
    """Whether a piece of an index only chooses a view."""
    basic = piece is None or piece is ... or isinstance(piece, int | slice)
    return basic and not isinstance(piece, bool)


def _is_mask(index: Any, x: torch.Tensor) -> bool:
    """Whether it says of each element of the first dimensions whether it is written."""
    if not isinstance(index, torch.Tensor) or index.dtype != torch.bool:
        return False
    return index.shape == x.shape[: index.dim()]
