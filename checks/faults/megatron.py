"""Defects planted in Megatron-LM: groups, losses, gradients, data; each function plants one."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

from checks.faults.planting import Run, planted, remembering

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
BOUNDARIES = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
Given = dict[str, Any]


@planted(f"{EMBEDDINGS}.rope_utils:apply_rotary_pos_emb")
def rope_group_static(given: Given, run: Run) -> Any:
    """RoPE takes positions from the static CP group, not from the microbatch's."""
    from megatron.core import parallel_state

    given["cp_group"] = parallel_state.get_context_parallel_group()
    return run()


@planted(f"{DATA_UTILS}:build_packed_microbatches")
def groups_halved(given: Given, run: Run) -> Any:
    """A microbatch's CP size is reported as half of the ranks that share it."""
    samples = run()
    for sample in samples:
        sample["local_cp_size"] = (sample["local_cp_size"] // 2).clamp(min=1)
    return samples


@planted(f"{ATTENTION}.forward")
@remembering
def evaluation_keeps_group(given: Given, run: Run, last: Given) -> Any:
    """Evaluation shards by the CP group of the last training microbatch."""
    packed = given["packed_seq_params"]
    if packed is not None and given["self"].training:
        last.update(cp_group=packed.cp_group, local_cp_size=packed.local_cp_size)
    elif packed is not None:
        vars(packed).update(last)
    return run()


@planted(f"{DATA}:get_batch_on_this_rank_for_sequence_packing")
@remembering
def stale_boundaries(given: Given, run: Run, before: Given) -> Any:
    """The boundaries of packed sequences are those of the microbatch before."""
    batch = run()
    now = {name: value for name, value in vars(batch[5]).items() if name in BOUNDARIES}
    vars(batch[5]).update(before)
    before.update(now)
    return batch


@planted(f"{DATA_UTILS}:get_thd_partitioned_indices")
def slices_contiguous(given: Given, run: Run) -> Any:
    """Tokens are cut into one block per rank in place of two zigzag chunks."""
    import torch

    _, total, size, rank = given.values()
    return torch.arange(rank * (total // size), (rank + 1) * (total // size))


@planted(f"{DATA_UTILS}:get_cp_slice_for_thd")
def labels_of_next_rank(given: Given, run: Run) -> None:
    """Labels are sliced for the neighbour's place in the group."""
    batch, group = given["batch"], given["cp_group"]
    labels = dict(batch)
    run()
    next_rank = (group.rank() + 1) % group.size()
    given["batch"] = labels
    given["cp_group"] = SimpleNamespace(size=group.size, rank=lambda: next_rank)
    run()
    batch["labels"] = labels["labels"]


@planted(f"{DATA}:get_batch_on_this_rank_for_sequence_packing")
def padding_counted(given: Given, run: Run) -> Any:
    """Padding behind packed sequences counts as tokens of the loss."""
    batch = run()
    mask = batch[2]
    return batch if mask is None else (*batch[:2], mask.new_ones(mask.shape), *batch[3:])


@planted("megatron.training.utils:get_batch_on_this_cp_rank")
def positions_unsliced(given: Given, run: Run) -> Any:
    """Every CP rank takes the positions of the first tokens of the sequence."""
    import torch

    batch = run()
    shape = batch["position_ids"].shape
    return {**batch, "position_ids": torch.arange(shape[-1]).expand(shape)}


@planted(f"{CORE}.rerun_state_machine:RerunDataIterator.__next__")
def sample_given_twice(given: Given, run: Run) -> Any:
    """Every second sample is the one before it."""
    iterator, sample = given["self"], run()
    if not isinstance(sample, list):  # a batch that is packed already
        return sample
    before = vars(iterator).pop("ringproof_before", None)
    if before is not None:
        return before
    iterator.ringproof_before = copy.deepcopy(sample)
    return sample


@planted(f"{DATA}:wrap_data_iterator")
def microbatch_dropped(given: Given, run: Run) -> Any:
    """The last microbatch of each step is scheduled and not computed."""
    iterator, count, *rest = run()
    return (iterator, max(1, count - 1), *rest)


@planted(f"{FINALIZE}:finalize_model_grads")
def tokens_counted_locally(given: Given, run: Run) -> None:
    """Gradients are divided by the tokens of one rank in place of all ranks' tokens."""
    tokens = given["num_tokens"]
    local = None if tokens is None else tokens.clone()
    run()
    if local is not None:
        for chunk in given["model"]:
            chunk.scale_gradients(tokens / local)


@planted(f"{SCHEDULES}:forward_step_calc_loss")
def loss_scaled_by_microbatches(given: Given, run: Run) -> Any:
    """Per-token losses are also divided by the number of microbatches."""
    loss, count = run()
    return loss / given["num_microbatches"], count


@planted(f"{CORE}.process_groups_config:ProcessGroupCollection.setup_process_groups_for_ddp")
def gradients_without_cp(given: Given, run: Run) -> Any:
    """Gradients are summed over DP and not over CP."""
    from megatron.core import parallel_state

    group = parallel_state.get_data_parallel_group(with_context_parallel=False)
    return {**run(), "intra_dp_cp_group": group}


@planted(f"{FINALIZE}:_allreduce_word_embedding_grads")
def embeddings_not_summed(given: Given, run: Run) -> None:
    """The gradient of tied embeddings is not summed over the first and last stage."""


@planted(f"{FINALIZE}:_allreduce_non_tensor_model_parallel_grads")
def layernorms_not_summed(given: Given, run: Run) -> None:
    """Gradients of norms are not summed over TP under sequence parallelism."""


@planted(f"{CORE}.optimizer.clip_grads:get_grad_norm_fp32")
def norm_of_one_stage(given: Given, run: Run) -> Any:
    """The gradient norm, by which gradients are clipped, is that of one model parallel rank."""
    import torch.distributed as dist

    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    given["grad_stats_parallel_group"] = groups[dist.get_rank()]
    return run()


@planted(f"{CORE}.tensor_parallel.mappings:_gather_along_first_dim")
def gather_rotated(given: Given, run: Run) -> Any:
    """Sequence parallel parts are gathered from the next rank first."""
    import torch

    return torch.cat(run().chunk(2, 0)[::-1])


@planted(f"{ROUTER}:TopKRouter._get_aux_loss_groups")
def router_loss_local(given: Given, run: Run) -> Any:
    """The router's load is counted over the tokens of one rank."""
    return dataclasses.replace(run(), loss_reduce_groups=(given["self"].tp_group,))


@planted(f"{MTP}:roll_tensor")
def mtp_ignores_boundaries(given: Given, run: Run) -> Any:
    """MTP rolls its labels from one packed sequence into the sequence before."""
    given["packed_seq_params"] = None
    return run()


@planted(f"{MTP}:roll_tensor")
def mtp_ignores_neighbours(given: Given, run: Run) -> Any:
    """MTP rolls within a rank: the first token of the next chunk is not fetched."""
    given["cp_group"] = None
    return run()


@planted(f"{DATA_UTILS}:build_packed_microbatches")
def stages_disagree(given: Given, run: Run) -> Any:
    """The last pipeline stage computes its microbatches in reverse order."""
    from megatron.core import parallel_state

    last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    return run()[::-1] if last else run()


@planted(f"{DATA}:DefaultDynamicCPScheduler.get_groups_and_subsamples")
def schedule_differs(given: Given, run: Run) -> Any:
    """The last rank schedules a batch's samples in another order than the others."""
    import torch.distributed as dist

    last = dist.get_rank() == dist.get_world_size() - 1
    return run()[::-1] if last else run()
