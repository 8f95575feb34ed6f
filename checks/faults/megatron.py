"""Defects planted in Megatron-LM: groups, losses, gradients, data; each function plants one."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from checks.faults.planting import (
    around,
    planted,
    skipped,
    swap,
    with_argument,
    with_result,
)

CORE = "megatron.core"
DATA = f"{CORE}.datasets.data_schedule"
DATA_UTILS = f"{CORE}.datasets.data_schedule_utils"
EMBEDDINGS = f"{CORE}.models.common.embeddings"
FINALIZE = f"{CORE}.distributed.finalize_model_grads"
SCHEDULES = f"{CORE}.pipeline_parallel.schedules"
GROUPS = f"{CORE}.process_groups_config:ProcessGroupCollection"
MTP = f"{CORE}.transformer.multi_token_prediction"
ROUTER = f"{CORE}.transformer.moe.router"
ATTENTION = f"{CORE}.extensions.transformer_engine:TEDotProductAttention"
TRAINING = "megatron.training.training"


def _static_group(_: Any) -> Any:
    from megatron.core import parallel_state

    return parallel_state.get_context_parallel_group()


def rope_group_static() -> None:
    """RoPE takes positions from the static CP group, not from the microbatch's."""
    swap(f"{EMBEDDINGS}.rope_utils:apply_rotary_pos_emb", with_argument("cp_group", _static_group))


def groups_halved() -> None:
    """A microbatch's CP size is reported as half of the ranks that share it."""

    def halved(samples: Any) -> Any:
        for sample in samples:
            sample["local_cp_size"] = (sample["local_cp_size"] // 2).clamp(min=1)
        return samples

    swap(f"{DATA_UTILS}:build_packed_microbatches", with_result(halved))


def evaluation_keeps_group() -> None:
    """Evaluation shards by the CP group of the last training microbatch."""
    last: dict[str, Any] = {}

    def call(original: Any, module: Any, *arguments: Any, **named: Any) -> Any:
        packed = named.get("packed_seq_params")
        if packed is not None and module.training:
            last.update(cp_group=packed.cp_group, local_cp_size=packed.local_cp_size)
        elif packed is not None:
            vars(packed).update(last)
        return original(module, *arguments, **named)

    around(f"{ATTENTION}.forward", call)


def stale_boundaries() -> None:
    """The boundaries of packed sequences are those of the microbatch before."""
    names = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
    before: dict[str, Any] = {}

    def stale(batch: Any) -> Any:
        packed = batch[5]
        now = {name: getattr(packed, name) for name in names}
        vars(packed).update(before)
        before.update(now)
        return batch

    swap(f"{DATA}:get_batch_on_this_rank_for_sequence_packing", with_result(stale))


@planted(f"{DATA_UTILS}:get_thd_partitioned_indices")
def slices_contiguous(_: Any, cu_seqlens: Any, total: int, size: int, rank: int) -> Any:
    """Tokens are cut into one block per rank in place of two zigzag chunks."""
    import torch

    return torch.arange(rank * (total // size), (rank + 1) * (total // size))


@planted(f"{DATA_UTILS}:get_cp_slice_for_thd")
def labels_of_next_rank(
    original: Any, batch: Any, cp_group: Any, *arguments: Any, **named: Any
) -> None:
    """Labels are sliced for the neighbour's place in the group."""
    labels = dict(batch)
    original(batch, cp_group, *arguments, **named)
    next_rank = (cp_group.rank() + 1) % cp_group.size()
    shifted = SimpleNamespace(size=cp_group.size, rank=lambda: next_rank)
    original(labels, shifted, *arguments, **named)
    batch["labels"] = labels["labels"]


def padding_counted() -> None:
    """Padding behind packed sequences counts as tokens of the loss."""

    def counted(batch: Any) -> Any:
        mask = batch[2]
        return batch if mask is None else (*batch[:2], mask.new_ones(mask.shape), *batch[3:])

    swap(f"{DATA}:get_batch_on_this_rank_for_sequence_packing", with_result(counted))


def positions_unsliced() -> None:
    """Every CP rank takes the positions of the first tokens of the sequence."""

    def first(batch: Any) -> Any:
        import torch

        shape = batch["position_ids"].shape
        return {**batch, "position_ids": torch.arange(shape[-1]).expand(shape)}

    swap("megatron.training.utils:get_batch_on_this_cp_rank", with_result(first))


@planted(f"{CORE}.rerun_state_machine:RerunDataIterator.__next__")
def sample_given_twice(original: Any, iterator: Any) -> Any:
    """Every second sample is the one before it."""
    sample = original(iterator)
    if not isinstance(sample, list):  # a batch that is packed already
        return sample
    before = vars(iterator).pop("ringproof_before", None)
    if before is not None:
        return before
    iterator.ringproof_before = copy.deepcopy(sample)
    return sample


def microbatch_dropped() -> None:
    """The last microbatch of each step is scheduled and not computed."""

    def fewer(scheduled: Any) -> Any:
        iterator, count, *rest = scheduled
        return (iterator, max(1, count - 1), *rest)

    swap(f"{DATA}:wrap_data_iterator", with_result(fewer))


@planted(f"{FINALIZE}:finalize_model_grads")
def tokens_counted_locally(
    original: Any, model: Any, num_tokens: Any = None, *arguments: Any, **named: Any
) -> None:
    """Gradients are divided by the tokens of one rank in place of all ranks' tokens."""
    local = None if num_tokens is None else num_tokens.clone()
    original(model, num_tokens, *arguments, **named)
    if local is not None:
        for chunk in model:
            chunk.scale_gradients(num_tokens / local)


@planted(f"{SCHEDULES}:forward_step_calc_loss")
def loss_scaled_by_microbatches(
    original: Any, model: Any, output: Any, *arguments: Any, **named: Any
) -> Any:
    """Per-token losses are also divided by the number of microbatches."""
    loss, count = original(model, output, *arguments, **named)
    return loss / arguments[4], count


@planted(f"{CORE}.process_groups_config:ProcessGroupCollection.setup_process_groups_for_ddp")
def gradients_without_cp(original: Any, *arguments: Any, **named: Any) -> Any:
    """Gradients are summed over DP and not over CP."""
    from megatron.core import parallel_state

    groups = original(*arguments, **named)
    group = parallel_state.get_data_parallel_group(with_context_parallel=False)
    return {**groups, "intra_dp_cp_group": group}


def embeddings_not_summed() -> None:
    """The gradient of tied embeddings is not summed over the first and last stage."""
    swap(f"{FINALIZE}:_allreduce_word_embedding_grads", skipped())


def layernorms_not_summed() -> None:
    """Gradients of norms are not summed over TP under sequence parallelism."""
    swap(f"{FINALIZE}:_allreduce_non_tensor_model_parallel_grads", skipped())


@planted(f"{CORE}.optimizer.clip_grads:get_grad_norm_fp32")
def norm_of_one_stage(original: Any, gradients: Any, norm_type: Any = 2, **_: Any) -> Any:
    """The gradient norm, by which gradients are clipped, is that of one model parallel rank."""
    import torch.distributed as dist

    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return original(gradients, norm_type, grad_stats_parallel_group=groups[dist.get_rank()])


@planted(f"{CORE}.tensor_parallel.mappings:_gather_along_first_dim")
def gather_rotated(original: Any, *arguments: Any, **named: Any) -> Any:
    """Sequence parallel parts are gathered from the next rank first."""
    import torch

    whole = original(*arguments, **named)
    parts = whole.chunk(2, 0)
    return torch.cat(parts[::-1])


@planted(f"{ROUTER}:TopKRouter._get_aux_loss_groups")
def router_loss_local(original: Any, router: Any, *arguments: Any, **named: Any) -> Any:
    """The router's load is counted over the tokens of one rank."""
    import dataclasses

    groups = original(router, *arguments, **named)
    return dataclasses.replace(groups, loss_reduce_groups=(router.tp_group,))


def mtp_ignores_boundaries() -> None:
    """MTP rolls its labels from one packed sequence into the sequence before."""
    swap(f"{MTP}:roll_tensor", with_argument("packed_seq_params", lambda _: None))


def mtp_ignores_neighbours() -> None:
    """MTP rolls within a rank: the first token of the next chunk is not fetched."""
    swap(f"{MTP}:roll_tensor", with_argument("cp_group", lambda _: None))


def stages_disagree() -> None:
    """The last pipeline stage computes its microbatches in reverse order."""

    def reverse(samples: Any) -> Any:
        from megatron.core import parallel_state

        last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        return samples[::-1] if last else samples

    swap(f"{DATA_UTILS}:build_packed_microbatches", with_result(reverse))


@planted(f"{DATA}:DefaultDynamicCPScheduler.get_groups_and_subsamples")
def schedule_differs(original: Any, scheduler: Any, lengths: Any) -> Any:
    """The last rank schedules a batch's samples in another order than the others."""
    import torch.distributed as dist

    groups = original(scheduler, lengths)
    last = dist.get_rank() == dist.get_world_size() - 1
    return groups[::-1] if last else groups
