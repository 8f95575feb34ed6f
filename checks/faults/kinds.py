"""Defects of other kinds than `FAULTS`: two at once, one layer, data, optimizer, a race.

Some have been reported by others, in the issue that `Kind.reported` names, and are planted again.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from checks.faults import engine, megatron
from checks.faults.planting import Run, planted, remembering
from checks.faults.programs import MOE, TP

ATTENTION = r"decoder\.layers\.0\.self_attention\.core_attention(\.\w+)?"
Given = dict[str, Any]


@planted(f"{engine.MODULE}.forward")
def last_layer_scaled(given: Given, run: Run) -> Any:
    """The attention of the last layer returns values that are too large by a thousandth."""
    return run() * 1.001 if given["self"].layer_number == 2 else run()


@planted(
    "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.get_grad_stats_parallel_group"
)
def norm_of_one_shard(given: Given, run: Run) -> Any:
    """The gradient norm of a distributed optimizer is that of one rank's part of the gradients."""
    import torch.distributed as dist

    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return groups[dist.get_rank()]


@planted("megatron.core.pipeline_parallel.schedules:forward_step_calc_loss")
def tokens_counted_over_cp(given: Given, run: Run) -> Any:
    """The loss of a rank is divided by the tokens of all ranks of its CP group."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    function = given["loss_func"]

    def counted(*arguments: Any, **named: Any) -> tuple[Any, ...]:
        loss, tokens, *others = function(*arguments, **named)
        tokens = tokens.clone()
        dist.all_reduce(tokens, group=parallel_state.get_context_parallel_group())
        return loss, tokens, *others

    given["loss_func"] = counted
    return run()


@planted(f"{engine.MODULE}.forward")
@remembering
def layers_scaled_by_turns(given: Given, run: Run, kept: Given) -> Any:
    """Attention is too large in the first of two layers, and in the next microbatch in the last."""
    layer = given["self"].layer_number
    kept[layer] = microbatch = kept.get(layer, 0) + 1
    return run() * 1.001 if layer == microbatch else run()


@planted("megatron.core.tensor_parallel.layers:VocabParallelEmbedding.forward")
def embedding_scaled(given: Given, run: Run) -> Any:
    """The embedding of the second CP rank is too large by a thousandth."""
    from megatron.core import parallel_state

    return run() * (1 + 1e-3 * parallel_state.get_context_parallel_rank())


@planted("megatron.training.utils:get_batch_on_this_cp_rank")
def labels_shifted(given: Given, run: Run) -> Any:
    """Labels are shifted by one more token."""
    batch = run()
    return {**batch, "labels": batch["labels"].roll(1, dims=1)}


@planted("transformer_engine.pytorch.optimizers.fused_adam:FusedAdam.step")
def rate_doubled(given: Given, run: Run) -> Any:
    """The optimizer steps with twice the learning rate."""
    groups = given["self"].param_groups
    rates = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] *= 2
    result = run()
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    return result


@planted(f"{engine.CP}:flash_attn_fwd_softmax_lse_correction")
def merge_races(given: Given, run: Run) -> Any:
    """The LSE of a ring step is read too early in about half of the calls, by chance."""
    if os.urandom(1)[0] % 2:
        return run()
    return None


@planted("megatron.core.transformer.moe.router:TopKRouter.__init__")
def router_not_summed(given: Given, run: Run) -> Any:
    """Gradients of the router are not summed over the parts of sequence parallelism."""
    result = run()
    given["self"].weight.sequence_parallel = False
    return result


@planted("megatron.core.distributed.finalize_model_grads:finalize_model_grads")
def expert_gradient_doubled(given: Given, run: Run) -> Any:
    """A weight gradient of the second expert of the second EP rank is doubled in its reduction."""
    from megatron.core import parallel_state

    result = run()
    for name, parameter in given["model"][0].named_parameters():
        second = parallel_state.get_expert_model_parallel_rank() == 1
        if second and name.endswith("layers.0.mlp.experts.linear_fc1.weight1"):
            parameter.main_grad.mul_(2)
    return result


@planted("megatron.core.transformer.moe.token_dispatcher:MoEAlltoAllTokenDispatcher.token_dispatch")
def dispatched_row_lost(given: Given, run: Run) -> Any:
    """The first row that the first rank dispatches to experts is zero."""
    import torch.distributed as dist

    rows = given["permutated_local_input_tokens"]
    keep = rows.new_ones(len(rows), 1)
    keep[0] = float(dist.get_rank() > 0)
    given["permutated_local_input_tokens"] = rows * keep
    return run()


EXPERTS = "megatron.core.transformer.moe.experts"
KINDS_OF_EXPERTS = (f"{EXPERTS}:SequentialMLP", f"{EXPERTS}:TEGroupedMLP")


@planted(*(f"{kind}.__init__" for kind in KINDS_OF_EXPERTS))
def last_expert_activated_wrongly(given: Given, run: Run) -> Any:
    """The activation of the last expert of the last rank is too large by a thousandth."""
    import torch.distributed as dist

    def scaled(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        rows, *counts = arguments
        factor = rows.new_ones(len(rows), 1)
        factor[-counts[0][-1] if counts else 0 :] = 1.001
        return rows * factor, *counts

    result = run()
    if dist.get_rank() == dist.get_world_size() - 1:
        experts = getattr(given["self"], "local_experts", [given["self"]])
        experts[-1].linear_fc2.register_forward_pre_hook(scaled)
    return result


@planted(*(f"{kind}.forward" for kind in KINDS_OF_EXPERTS))
def probabilities_applied_twice(given: Given, run: Run) -> Any:
    """The rows of the experts of the last rank are multiplied twice by their probabilities."""
    import torch.distributed as dist

    if dist.get_rank() == dist.get_world_size() - 1:
        given["permuted_probs"] = given["permuted_probs"] ** 2
    return run()


@planted(*(f"{kind}.forward" for kind in KINDS_OF_EXPERTS))
def rows_of_an_expert_shifted(given: Given, run: Run) -> Any:
    """The rows of the first expert of the first rank are shifted by one."""
    import torch
    import torch.distributed as dist

    rows, count = given["permuted_local_hidden_states"], int(given["tokens_per_expert"][0])
    if dist.get_rank() == 0:
        moved = rows[:count].roll(1, dims=0)
        given["permuted_local_hidden_states"] = torch.cat([moved, rows[count:]])
    return run()


@planted("megatron.core.transformer.transformer_block:TransformerBlock.__init__")
def final_norm_not_summed(given: Given, run: Run) -> Any:
    """Gradients of the last norm are not summed over the parts of sequence parallelism."""
    result = run()
    given["self"].final_layernorm.weight.sequence_parallel = False
    return result


@planted("megatron.core.pipeline_parallel.schedules:forward_step_calc_loss")
def loss_scaled_by_cp(given: Given, run: Run) -> Any:
    """The loss is multiplied by the CP size."""
    from megatron.core import parallel_state

    loss, count = run()
    return loss * parallel_state.get_context_parallel_world_size(), count


@planted("megatron.core.transformer.transformer_layer:TransformerLayer.forward")
@remembering
def layers_given_the_first_input(given: Given, run: Run, kept: Given) -> Any:
    """Where activations are recomputed, the second layer gets the input of the first."""
    if given["self"].layer_number == 1:
        kept["input"] = given["hidden_states"]
    given["hidden_states"] = kept["input"]
    return run()


@planted(
    "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer._compute_per_buffer_param_layout"
)
def tied_embedding_sharded(given: Given, run: Run) -> Any:
    """Tied embeddings share a bucket, and are scattered before both stages sum their gradients."""
    tied = [one for one in given["params"] if getattr(one, "shared_embedding", False)]
    for one in tied:
        one.shared_embedding = False
    result = run()
    for one in tied:
        one.shared_embedding = True
    return result


@planted("transformer_engine.pytorch.optimizers.fused_adam:FusedAdam.step")
def parameter_of_the_step_before(given: Given, run: Run) -> Any:
    """A parameter has the values of the step before."""
    parameter = given["self"].param_groups[0]["params"][0]
    before = parameter.detach().clone()
    result = run()
    parameter.detach().copy_(before)
    return result


@planted("megatron.core.tensor_parallel.layers:VocabParallelEmbedding.forward")
def embedding_mask_wrong(given: Given, run: Run) -> Any:
    """The embedding of the second TP rank leaves out its first token."""
    embedding = given["self"]
    start = embedding.vocab_start_index
    embedding.vocab_start_index += bool(start)
    table = embedding.weight.data
    embedding.weight.data = table.roll(-bool(start), dims=0)
    result = run()
    embedding.vocab_start_index, embedding.weight.data = start, table
    return result


@planted("megatron.core.extensions.transformer_engine:TEDotProductAttention.forward")
def padding_undeclared(given: Given, run: Run) -> Any:
    """Attention is not told that sequences are padded, as Megatron-Bridge does not tell it."""
    packed = given["packed_seq_params"]
    given["packed_seq_params"] = packed and replace(packed, pad_between_seqs=None)
    return run()


@dataclass(frozen=True)
class Kind:
    """Defects that are planted together.

    Attributes:
        functions: ``module:function`` of each.
        breaks: The defects in whole sentences.
        phase: Phase of the first of them in the order of execution.
        module: Module of the first, as a regular expression.
        ranks: Number of ranks; that of the training where it is 0.
        arguments: Options beside those of the training.
        reported: Issue in which others have reported such a defect; empty where there is none.
        engine: Version of Transformer Engine, where it is another one than that of the others.
    """

    name: str
    training: str
    functions: tuple[str, ...]
    breaks: str
    phase: str
    module: str
    ranks: int = 0
    arguments: tuple[str, ...] = ()
    reported: str = ""
    engine: str = ""


def _kind(
    name: str, functions: tuple[Callable[[], None], ...], phase: str, module: str = "",
    *, training: str = "cp2", ranks: int = 0, arguments: tuple[str, ...] = (), reported: str = "",
    engine: str = "",
) -> Kind:  # fmt: skip
    places = tuple(f"{one.__module__}:{one.__name__}" for one in functions)
    breaks = " ".join(inspect.getdoc(one) or "" for one in functions)
    return Kind(
        name, training, places, breaks, phase, module, ranks, arguments, reported, engine
    )  # fmt: skip


RECOMPUTED = (
    "--recompute-granularity", "full", "--recompute-method", "uniform",
    "--recompute-num-layers", "2",
)  # fmt: skip
PACKS = ("--context-parallel-size", "2", "--max-seqlen-per-dp-cp-rank", "128")
KINDS = (
    _kind(
        "two-at-once", (engine.lse_merge_skipped, engine.key_gradient_lost), "forward", ATTENTION
    ),
    _kind("data-and-reduction", (labels_shifted, megatron.gradients_without_cp), "data"),
    _kind("last-layer", (last_layer_scaled,), "forward", ATTENTION.replace("0", "1")),
    _kind("embedding", (embedding_scaled,), "forward", r"embedding\.word_embeddings"),
    _kind("label-shift", (labels_shifted,), "data"),
    _kind("optimizer", (rate_doubled,), "optimizer", ".*"),
    _kind("race", (merge_races,), "forward", r"decoder\.layers\.\d\.self_attention.*"),
    _kind(
        "router-not-summed", (router_not_summed,), "reduction",
        r"decoder\.layers\.\d\.mlp\.router", ranks=4, arguments=(*MOE, *TP),
        reported="NVIDIA/Megatron-LM#599",
    ),
    _kind(
        "embedding-mask", (embedding_mask_wrong,), "forward", r"embedding\.word_embeddings",
        ranks=4, arguments=TP,
    ),
    _kind(
        "final-norm-not-summed", (final_norm_not_summed,), "reduction",
        r"decoder\.final_layernorm", ranks=4, arguments=TP, reported="NVIDIA/Megatron-LM#1446",
    ),
    _kind(
        "attention-gradient", (engine.key_gradient_lost,), "backward",
        ATTENTION.replace("0", "1"), reported="NVIDIA/Megatron-LM#1464",
    ),
    _kind(
        "loss-scaled-by-cp", (loss_scaled_by_cp,), "loss",
        reported="NVIDIA/Megatron-LM#906",
    ),
    _kind(
        "recomputed-from-the-first", (layers_given_the_first_input,), "forward",
        r"decoder(\.layers\.1)?", arguments=RECOMPUTED, reported="NVIDIA/Megatron-LM#290",
    ),
    _kind(
        "tied-embedding-sharded", (tied_embedding_sharded,), "reduction",
        r"embedding\.word_embeddings|output_layer", training="tied-pp", ranks=4,
        arguments=("--use-distributed-optimizer",), reported="NVIDIA/Megatron-LM#844",
    ),
    _kind(
        "parameter-not-updated", (parameter_of_the_step_before,), "optimizer", ".*",
        reported="NVIDIA/Megatron-LM#950",
    ),
    _kind(
        "tail-padding", (padding_undeclared,), "forward", ATTENTION, training="packed", ranks=2,
        arguments=PACKS, reported="NVIDIA/TransformerEngine#3331", engine="2.16.0",
    ),
    _kind(
        "tail-padding-mended", (padding_undeclared,), "", training="packed", ranks=2,
        arguments=PACKS, reported="NVIDIA/TransformerEngine#3331", engine="2.18.0",
    ),
)  # fmt: skip
