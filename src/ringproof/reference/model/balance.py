"""The sequence-wise balance loss of a mixture of experts, over a microbatch's own CP group.

For a sequence ``s`` of ``L_s`` tokens, each sent to ``K`` of ``E`` experts, DeepSeek's loss
(arXiv 2405.04434, 2412.19437; ``seq_aux_loss`` in Megatron-LM) is ``E * sum_e f_e(s) P_e(s)``:

    f_e(s)  share of the sequence's ``L_s * K`` choices that went to expert ``e``
    P_e(s)  mean probability of expert ``e`` over the sequence's tokens

Weighted by ``L_s``, it is ``E * sum_e f_e(s) * (sum of e's probability over the tokens)``: linear
in the probabilities, so each rank adds the share of its own rows, and only the counts behind ``f``
have to be known over all ranks that hold a part of the sequence. Those are the ranks of the
microbatch's CP group, whatever its size; counts over fewer of them, or over ranks that hold other
sequences, give another loss without any error.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.tensor_parallel import TensorParallel


def counting_groups(
    batch: PackedBatch, tensor_parallel: TensorParallel
) -> tuple[dist.ProcessGroup, ...]:
    """The groups over which a microbatch's choices are summed, one after the other.

    The CP group that the microbatch came with; and the TP group where sequence parallelism cuts
    the rows of a CP rank once more. Without it TP ranks hold the same rows, which count once.
    """
    if tensor_parallel.rows_are_cut:
        return batch.group.flat, tensor_parallel.group
    return (batch.group.flat,)


def count_entries(batch: PackedBatch) -> int:
    """Entries of the pack, or of its capacity: how many sequences are told apart."""
    return batch.metadata.capacity.entries if batch.metadata else len(batch.packed.lengths)


def balance_loss(
    probabilities: torch.Tensor,
    chosen: torch.Tensor,
    sequences: torch.Tensor,
    real: torch.Tensor,
    *,
    entries: int,
    groups: Sequence[dist.ProcessGroup],
) -> torch.Tensor:
    """These rows' share of ``sum_s L_s * E * sum_e f_e(s) P_e(s)``, 0-dim.

    Args:
        probabilities: ``[r, E]``. The loss is differentiable in them alone.
        chosen: ``[r, K]`` int64.
        sequences: ``[r]`` int64, the entry of the pack that a row belongs to.
        real: ``[r]`` bool; rows of padding count nowhere.
        entries: Entries of the pack, the same on every rank of the groups.
        groups: Where the other rows of the same sequences are.
    """
    experts = probabilities.shape[-1]
    counts = _choices(chosen, sequences, real, entries=entries, experts=experts)
    for group in groups:
        dist.all_reduce(counts, group=group)
    total = counts.sum(-1, keepdim=True).clamp(min=1)  # an entry may have no real row
    fractions = counts.to(probabilities.dtype) / total
    costs = (fractions[sequences] * probabilities).sum(-1)
    return experts * torch.where(real, costs, 0.0).sum()


def _choices(
    chosen: torch.Tensor,
    sequences: torch.Tensor,
    real: torch.Tensor,
    *,
    entries: int,
    experts: int,
) -> torch.Tensor:
    """How often each sequence's local rows chose each expert: ``[entries, E]`` int64."""
    cells = sequences.unsqueeze(-1) * experts + chosen
    counts = torch.zeros(entries * experts, dtype=torch.int64, device=chosen.device)
    ones = real.unsqueeze(-1).expand_as(chosen).to(torch.int64)
    return counts.index_add_(0, cells.flatten(), ones.flatten()).view(entries, experts)
