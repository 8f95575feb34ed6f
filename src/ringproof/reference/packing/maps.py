"""Rows of a pack by rank and local row, as arrays: to send tokens out and to bring results back.

The integers behind them are ``shards``; these are for indexing. numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ringproof.reference.packing.partition import Span
from ringproof.reference.packing.sequences import PackedSequences
from ringproof.reference.packing.shards import pack_spans

Rows = npt.NDArray[np.int64]


def positions(spans: Sequence[Span]) -> Rows:
    """The positions of some spans, in their order."""
    return np.concatenate([np.arange(span.start, span.stop) for span in spans])


def local_to_global(packed: PackedSequences, size: int, rank: int, partition: str) -> Rows:
    """Row of the pack of each local row of a rank: ``[rows / size]``.

    ``whole[local_to_global(...)]`` is the rank's part of ``whole``.

    Raises:
        InputError: The pack cannot be cut evenly.

    >>> from ringproof.reference.packing.sequences import pack
    >>> local_to_global(pack([7, 16], multiple=8), 2, 0, "zigzag").tolist()
    [0, 1, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23]
    """
    return positions(pack_spans(packed, size, rank, partition))


def global_to_local(packed: PackedSequences, size: int, partition: str) -> tuple[Rows, Rows]:
    """Rank and local row of each row of the pack: two arrays ``[rows]``.

    With the parts of all ranks stacked, ``stacked[ranks, locals]`` is the whole.

    Raises:
        InputError: The pack cannot be cut evenly.
    """
    ranks = np.empty(packed.rows, dtype=np.int64)
    locals_ = np.empty(packed.rows, dtype=np.int64)
    for rank in range(size):
        rows = local_to_global(packed, size, rank, partition)
        ranks[rows] = rank
        locals_[rows] = np.arange(len(rows))
    return ranks, locals_


def real_rows(
    packed: PackedSequences, size: int, rank: int, partition: str
) -> npt.NDArray[np.bool_]:
    """Which local rows of a rank hold a real token: ``[rows / size]``, true where one does.

    Megatron-LM's ``padding_mask`` is the negation.

    Raises:
        InputError: The pack cannot be cut evenly.
    """
    real = np.zeros(packed.rows, dtype=np.bool_)
    for span in packed.real_spans:
        real[span.index] = True
    return real[local_to_global(packed, size, rank, partition)]


def sequence_positions(packed: PackedSequences, size: int, rank: int, partition: str) -> Rows:
    """Position within its sequence of each local row of a rank, for rotary embeddings.

    Padding goes on counting, as upstream's position ids do.

    Raises:
        InputError: The pack cannot be cut evenly.
    """
    rows = local_to_global(packed, size, rank, partition)
    starts = np.asarray(packed.cu_seqlens_padded)
    return rows - starts[np.searchsorted(starts, rows, side="right") - 1]
