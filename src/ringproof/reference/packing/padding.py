"""Multiples to which packed sequences are padded.

Three things ask for whole multiples of rows, and one formula serves them all: what one rank holds
of a sequence (or of a pack) has to be whole chunks, whole tensor parallel shards and whole blocks
of the number format. Worked table, zigzag:

    CP   TP with sequence parallelism   alignment       multiple
    1    1                              none            1
    4    1                              none            8      2 * CP
    4    2                              none            16     2 * CP * TP
    4    2                              fp8 (16)        128    CP * TP * 16
    1    4                              mxfp8 (32)      128    TP * 32

Chunks and shards concern each sequence. The number format concerns rows of a matrix product, and
those are the whole pack's: it is enough to round up the pack (``pack(..., total_multiple=…)``).

Sources: Transformer Engine's ``thd_partition_indices_kernel`` (each padded length a multiple of
``2 * CP``); Megatron-LM's ``SFTDataset._calculate_padding_divisor`` (times the sequence parallel
size; nothing for CP 1) and ``get_fp8_align_size``, ``get_fp4_align_size`` (16, 32, 128);
ms-swift #9722 (each sequence parallel shard, not their sum, must be whole MXFP8 blocks); NeMo RL's
``_get_pack_sequence_parameters_for_megatron`` (sequences and packs apart; 128 for blockwise FP8);
Megatron-LM #3791 (128-token expert chunks).
"""

from __future__ import annotations

import math
from types import MappingProxyType

from ringproof.errors import InputError, check_name
from ringproof.reference.packing.partition import check_partition

# Rows that a matrix product wants together, by number format or user.
ROW_ALIGNMENTS = MappingProxyType(
    {"none": 1, "fp8": 16, "mxfp8": 32, "blockwise-fp8": 128, "nvfp4": 128, "expert-chunks": 128}
)


def padding_multiple(
    *,
    cp_size: int = 1,
    partition: str = "zigzag",
    tp_size: int = 1,
    sequence_parallel: bool = False,
    alignment: str = "none",
) -> int:
    """The multiple of rows to which a sequence, or a pack, has to be padded.

    Args:
        cp_size: Ranks in the CP group that shares the sequence.
        sequence_parallel: Whether rows are cut over the tensor parallel ranks, too.
        alignment: One of :data:`ROW_ALIGNMENTS`.

    Returns:
        ``CP * (TP under sequence parallelism) * lcm(2 for zigzag with CP > 1, alignment)``.

    Raises:
        InputError: A size below 1, or an unknown name.

    >>> padding_multiple(cp_size=4, tp_size=2, sequence_parallel=True)
    16
    >>> padding_multiple(cp_size=3, partition="contiguous", alignment="fp8")
    48
    """
    for name, size in (("cp_size", cp_size), ("tp_size", tp_size)):
        if size < 1:
            raise InputError(name, f"{size} is less than 1; give 1 or more")
    check_partition(partition)
    check_name("alignment", alignment, ROW_ALIGNMENTS)
    chunks = 2 if partition == "zigzag" and cp_size > 1 else 1
    shards = cp_size * (tp_size if sequence_parallel else 1)
    return shards * math.lcm(chunks, ROW_ALIGNMENTS[alignment])


def round_up(rows: int, multiple: int) -> int:
    """The smallest multiple that is not below ``rows``.

    >>> round_up(17, 8), round_up(16, 8), round_up(0, 8)
    (24, 16, 0)
    """
    return -(-rows // multiple) * multiple
