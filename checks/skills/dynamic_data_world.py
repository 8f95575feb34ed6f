"""What Megatron-LM's own code does with one packed sample: padding, shift, cost and counts.

Called by `ringproof.rehearsal.fixtures.Stage.call`.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

LENGTHS = (5, 3)
PADDED = 8  # of each of the two sequences


class Words:
    """A tokenizer: a conversation is the number of its tokens."""

    eod, pad = 1, 0

    def tokenize_conversation(
        self, conversation: list[dict[str, Any]], **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.full((conversation[0]["content"],), 7)
        return tokens, tokens


def padded_lengths(sizes: dict[str, int]) -> list[int]:
    """Lengths after the SFT data set padded sequences of 5, 9 and 33 tokens.

    Args:
        sizes: ``cp``, ``dp`` and ``sp``, the sizes of CP, DP and sequence parallelism.
    """
    from megatron.training.datasets.sft_dataset import SFTDataset

    dataset = SFTDataset.__new__(SFTDataset)
    dataset.dataset = [[{"role": "system", "content": length} for length in (5, 9, 33)]]
    dataset.indices = [0]
    dataset.config = SimpleNamespace(
        tokenizer=Words(),
        sequence_length=512,
        context_parallel_size=sizes["cp"],
        data_parallel_size=sizes["dp"],
        sequence_parallel_size=sizes["sp"],
        dynamic_context_parallel=True,
        hybrid_context_parallel=True,
        reset_position_ids=False,
        reset_attention_mask=False,
        create_attention_mask=False,
    )
    borders = dataset[0]["cu_seqlens"].tolist()
    return [after - before for before, after in itertools.pairwise(borders[:3])]


def shifted(_: None) -> list[int]:
    """Positions 1 to 16 after MTP's shift; two sequences of 5 and 3 tokens have 8 rows each."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer import multi_token_prediction as prediction

    tokens = torch.tensor([0, LENGTHS[0], sum(LENGTHS)], dtype=torch.int32)
    rows = torch.tensor([0, PADDED, 2 * PADDED], dtype=torch.int32)
    packing = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=tokens,
        cu_seqlens_kv=tokens,
        cu_seqlens_q_padded=rows,
        cu_seqlens_kv_padded=rows,
        max_seqlen_q=PADDED,
        max_seqlen_kv=PADDED,
    )
    positions = torch.arange(1, 2 * PADDED + 1).unsqueeze(0)
    group = dist.group.WORLD
    if hasattr(prediction, "_roll_tensors_packed_seq"):
        (rolled,) = prediction.roll_tensor([positions], -1, -1, group, packing)
    else:
        rolled, _ = prediction.roll_tensor(positions, -1, -1, group, packing)
    return [int(value) for value in rolled.flatten()]


def costs(sequences: list[tuple[int, int, int]]) -> list[list[float]]:
    """Work of each rank by upstream's scheduler, for a sequence alone on all ranks of a domain.

    Args:
        sequences: Length, ranks, and tokens of a rank.
    """
    try:
        from megatron.core.datasets.data_schedule_utils import next_hdp_group_packing_aware
    except ImportError:  # the hybrid schedule
        from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

        weigh = BalancedCPScheduler(128, dist.group.WORLD).get_total_workload
        return [[weigh(length, ranks)] * ranks for length, ranks, _ in sequences]
    return [
        next_hdp_group_packing_aware([(0, length)], ranks, budget)[2]
        for length, ranks, budget in sequences
    ]


def counted(value: int) -> int:
    """A number of tokens, as it arrives on a rank that is not the first."""
    from megatron.core.datasets.data_schedule_utils import broadcast_scalars

    return int(broadcast_scalars([value], dist.group.WORLD, "cpu")[0])
