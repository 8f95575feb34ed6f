"""Which sequence each row of a pack belongs to, for what runs over rows in order.

Attention sees borders as masks; a recurrence and a convolution see them as a change of number from
one row to the next. The numbers are a tensor, so a captured graph can be replayed with others.
"""

from __future__ import annotations

import torch

from ringproof.reference.packing import capacity
from ringproof.reference.packing.sequences import PackedSequences

PADDING = capacity.PADDING
"""The number of rows that hold no token: nothing sees them and they see nothing."""


def row_segments(packed: PackedSequences, device: torch.device) -> torch.Tensor:
    """The entry that each row of the pack holds a token of, else :data:`PADDING`: ``[T]`` int64.

    >>> from ringproof.reference.packing.sequences import pack
    >>> row_segments(pack([3, 1], multiple=4), torch.device("cpu")).tolist()
    [0, 0, 0, -1, 1, -1, -1, -1]
    """
    numbers: list[int] = []
    counts: list[int] = []
    for entry, (real, rows) in enumerate(zip(packed.lengths, packed.padded_lengths, strict=True)):
        numbers += [entry, PADDING]
        counts += [real, rows - real]
    return torch.tensor(numbers).repeat_interleave(torch.tensor(counts)).to(device)


def blank(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """``values [n, …]`` with zeros where ``keep [n]`` is false, whatever stood there.

    A choice, not a product: NaN does not survive it, and no gradient goes where it chose zero.
    """
    return torch.where(keep.reshape(-1, *(1,) * (values.dim() - 1)), values, 0)
