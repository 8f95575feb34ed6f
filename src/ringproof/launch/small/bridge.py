"""A launch of Megatron-Bridge made small, by overrides that are put after its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError
from ringproof.launch.small.draft import Change
from ringproof.launch.small.layout import Layout
from ringproof.launch.small.model import hybrid
from ringproof.launch.small.shrink import FLASH, ROUNDING, TRITON, USER_BUFFERS
from ringproof.launch.small.verl import (
    DATA,
    FILES,
    KERNELS,
    LENGTHS,
    MODEL,
    OFFLOAD,
    OPTIMIZER,
    RATE,
    STAGES,
    STEPS,
    OverrideDraft,
)

EVERY = 5040  # which the sizes of groups up to 10 divide
VOCABULARY = 128
HEAD = 16  # width of an attention head
SHORTEST = 128  # tokens of a sequence; the longest made-up conversation has 96
PACKS = "packed_sequence_specs"  # up to 0.5; since 0.6 it is offline_packing_specs
QUANTIZED = ("fp8", "fp4")
LATENT = MappingProxyType({
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_head_dim": HEAD, "qk_pos_emb_head_dim": HEAD,
    "v_head_dim": HEAD,
})  # fmt: skip
"""Widths of multi-latent attention."""


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse a configuration that is not read, or whose failure here would say nothing of it.

    Raises:
        InputError: Its model has its settings of Megatron in a part of its own, it trains
            adapters, or it packs under CP as Bridge up to 0.5 does.
    """
    model, dataset = config["model"], config.get("dataset")
    if "transformer" in model:
        sentence = (
            "is a part of the model, as models that a builder makes have it; that is not read"
        )
        raise InputError("model.transformer", f"it {sentence} here; take a release up to 0.6")
    if config.get("peft") is not None:
        sentence = "it cannot be rehearsed, as it needs a checkpoint of the model; give peft=null"
        raise InputError("peft", f"{sentence}, which trains all parameters")
    specs = dataset.get(PACKS) if isinstance(dataset, Mapping) else None
    size = specs.get("packed_sequence_size") if isinstance(specs, Mapping) else None
    parallel = model.get("context_parallel_size") not in (None, 1)
    if parallel and isinstance(size, int) and size > 0:
        sentence = "with CP it cannot be rehearsed on Bridge up to 0.5"
        raise InputError(f"dataset.{PACKS}", f"{sentence}; give {PACKS}=null, or take 0.6")


def shrink_settings(draft: OverrideDraft, after: Layout, steps: int, dtype: str) -> None:
    """Put everything that makes a step small, besides the ranks.

    Args:
        after: The layout of ranks.
        dtype: Precision of the run, ``float32`` or ``bfloat16``.
    """
    _shrink_model(draft, after)
    _shrink_experts(draft, after)
    _shrink_batch(draft, after)
    _shrink_steps(draft, steps)
    _leave_out(draft)
    if dtype == "float32":
        draft.put_known("mixed_precision", None, ROUNDING)
        for name in ("model.bf16", "model.fp16", "optimizer.bf16", "optimizer.fp16"):
            draft.put_known(name, False, ROUNDING)
        # Megatron's own fused cross entropy makes gradients of bfloat16.
        draft.put_given("model.cross_entropy_loss_fusion", False, ROUNDING)
    elif any(kind in str(draft.get("mixed_precision")) for kind in QUANTIZED):
        draft.put("mixed_precision", "bf16_mixed", ROUNDING)
    for kind in QUANTIZED:
        draft.put_known(f"model.{kind}", None, ROUNDING)


def _shrink_model(draft: OverrideDraft, after: Layout) -> None:
    """Put widths that TP and all-to-all over CP divide, and layers that stages divide."""
    virtual = draft.integer("model.virtual_pipeline_model_parallel_size")
    stages = after.pipeline * virtual
    old = draft.integer("model.num_layers")
    layers = stages * 2 if stages == 1 else stages
    if not _shrink_patterns(draft, after):
        draft.put_known("model.num_layers", min(old, layers) if old % stages == 0 else old, MODEL)
    parts = after.tensor * after.context
    given = draft.integer("model.num_attention_heads")
    groups = draft.integer("model.num_query_groups", given)
    fewer = max(2, parts) if groups % parts == 0 else groups  # refused in small as in full
    fewer = min(groups, fewer)
    heads = fewer * min(max(given // groups, 1), 2) if given % groups == 0 else given
    draft.put_known("model.num_query_groups", fewer, MODEL)
    draft.put_known("model.num_attention_heads", heads, MODEL)
    draft.put_known("model.kv_channels", HEAD, MODEL)
    draft.put_known("model.hidden_size", HEAD * heads, MODEL)
    draft.put_known("model.ffn_hidden_size", 32 * max(4, parts), MODEL)
    if draft.get("model.multi_latent_attention"):
        for name, width in LATENT.items():
            draft.put_given(f"model.{name}", width, MODEL)
    draft.put_given("model.pipeline_model_parallel_layout", None, STAGES)
    for name in ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"):
        draft.put_given(f"model.{name}", None, STAGES)
    for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        draft.put_given(f"model.{name}", False, STAGES)


def _shrink_patterns(draft: OverrideDraft, after: Layout) -> bool:
    """Put a short pattern of a hybrid model, and say whether it is one.

    A number of layers that is not the pattern's is kept: Bridge refuses it in full, too.
    """
    for name in ("model.hybrid_layer_pattern", "model.hybrid_override_pattern"):
        pattern = draft.get(name)
        if isinstance(pattern, str):
            short = hybrid(pattern, after.pipeline)
            old, new = (len(one.partition("/")[0].replace("|", "")) for one in (pattern, short))
            draft.put(name, short, MODEL)
            if draft.get("model.num_layers") == old:
                draft.put("model.num_layers", new, MODEL)
            return True
    return False


def _shrink_experts(draft: OverrideDraft, after: Layout) -> None:
    if not draft.get("model.num_moe_experts"):
        return
    experts = draft.integer("model.num_moe_experts")
    few = max(4, after.expert) if experts % after.expert == 0 else experts
    draft.put("model.num_moe_experts", min(experts, few), MODEL)
    draft.put_known("model.moe_ffn_hidden_size", 64, MODEL)
    draft.put_known("model.moe_router_topk", min(draft.integer("model.moe_router_topk"), 2), MODEL)
    draft.put_given("model.moe_shared_expert_intermediate_size", 64, MODEL)
    pattern: Any = draft.get("model.moe_layer_freq")
    layers = draft.integer("model.num_layers")
    if isinstance(pattern, list) and len(pattern) != layers:
        draft.put("model.moe_layer_freq", [*pattern[: layers // 2], *[1] * layers][:layers], MODEL)
    for name in ("moe_router_num_groups", "moe_router_group_topk"):
        draft.put_given(f"model.{name}", None, MODEL)
    for name in ("moe_permute_fusion", "moe_router_fusion", "moe_enable_deepep"):
        draft.put_given(f"model.{name}", False, KERNELS)
    if draft.get("model.moe_token_dispatcher_type") == "flex":
        draft.put("model.moe_token_dispatcher_type", "alltoall", KERNELS)


def _shrink_batch(draft: OverrideDraft, after: Layout) -> None:
    """Put a short sequence and few microbatches of each rank."""
    length = -(-max(SHORTEST, 4 * after.static_unit) // after.static_unit) * after.static_unit
    given = draft.integer("model.seq_length")
    if given % after.static_unit:
        length += given % after.static_unit  # refused in small as in full
    length = min(given, length)
    draft.put("model.seq_length", length, LENGTHS)
    for name in ("dataset.seq_length", "dataset.sequence_length"):
        same = draft.get(name) == given  # Bridge refuses two lengths, in small as in full
        draft.put_known(name, length if same else 2 * length, LENGTHS)
    for name in (PACKS, "offline_packing_specs"):
        if draft.get(f"dataset.{name}.packed_sequence_size"):
            draft.put(f"dataset.{name}.packed_sequence_size", length, LENGTHS)
    micro, batch = (draft.integer(f"train.{name}_batch_size") for name in ("micro", "global"))
    few = min(micro, 2)
    number = max(batch // (micro * after.data), 1)
    draft.put("train.micro_batch_size", few, DATA)
    draft.put("train.global_batch_size", few * after.data * min(number, 2 * after.pipeline), DATA)
    draft.put_given("train.rampup_batch_size", None, STEPS)
    for name in ("micro", "global"):
        draft.put_given(f"validation.eval_{name}_batch_size", None, STEPS)


def _shrink_steps(draft: OverrideDraft, steps: int) -> None:
    draft.put("train.train_iters", steps, STEPS)
    for name in ("train_samples", "exit_interval", "exit_duration_in_mins"):
        draft.put_given(f"train.{name}", None, STEPS)
    for section in ("validation", "train"):  # where 0.3 has them
        draft.put_known(f"{section}.eval_iters", 0, STEPS)
        draft.put_known(f"{section}.eval_interval", 100 * steps, STEPS)
    for name, value in (("lr_decay_style", "constant"), ("lr_warmup_iters", 0),
                        ("lr_warmup_fraction", None), ("lr_decay_iters", None)):  # fmt: skip
        draft.put_known(f"scheduler.{name}", value, OPTIMIZER)
    for name in ("lr", "min_lr"):
        draft.put_known(f"optimizer.{name}", RATE, OPTIMIZER)


def _leave_out(draft: OverrideDraft) -> None:
    """Turn off files and services, and what needs kernels or a network that are not here."""
    for name in ("save", "load", "pretrained_checkpoint"):
        draft.put_given(f"checkpoint.{name}", None, FILES)
    draft.put_given("checkpoint.async_save", False, FILES)
    for name in ("tensorboard_dir", "wandb_project", "wandb_exp_name", "mlflow_experiment"):
        draft.put_given(f"logger.{name}", None, FILES)
    draft.put_known("logger.log_interval", 1, FILES)
    for name in ("profiling", "ft", "straggler", "nvrx_straggler", "inprocess_restart"):
        draft.put_given(name, None, FILES)
    draft.put_known("dataset.num_workers", 0, FILES)
    draft.put_given("dataset.persistent_workers", False, FILES)
    draft.put_given("comm_overlap", None, USER_BUFFERS)
    draft.put_given("model.tp_comm_overlap", False, USER_BUFFERS)
    draft.put_given("optimizer.optimizer_cpu_offload", False, OFFLOAD)
    draft.put_given("model.fine_grained_activation_offloading", False, OFFLOAD)
    draft.put_given("optimizer.use_precision_aware_optimizer", False, ROUNDING)
    if draft.get("model.cross_entropy_fusion_impl") == "te":
        draft.put("model.cross_entropy_fusion_impl", "native", TRITON)
    if draft.get("model.attention_backend") in (None, "auto", "flash"):
        draft.put_known("model.attention_backend", "fused", FLASH)


def hide_made_up(changes: Sequence[Change]) -> list[Change]:
    """Return changes without the sizes that were made up for a model of a hub."""
    return [
        replace(one, before="of the model") if one.hides == MODEL and one.before else one
        for one in changes
    ]


def put_tokens(draft: OverrideDraft, folder: str) -> None:
    """Put made-up data in the place of files, of a hub and of a tokenizer.

    Args:
        folder: Where conversations and their tokenizer are.
    """
    tunes = draft.get("dataset.do_validation") is not None  # which only data of fine-tuning have
    kind = ("HuggingFaceTokenizer", folder) if tunes else ("NullTokenizer", None)
    draft.put_known("tokenizer.tokenizer_type", kind[0], DATA)
    draft.put_known("tokenizer.tokenizer_model", kind[1], DATA)
    # A null tokenizer has one more, for the end of a text.
    draft.put_known("tokenizer.vocab_size", None if tunes else VOCABULARY - 1, MODEL)
    draft.put_given("model.vocab_size", None, MODEL)
    draft.put_known("model.should_pad_vocab", True, MODEL)
    for name in ("blend", "blend_per_split", "data_path"):
        draft.put_given(f"dataset.{name}", None, DATA)
    if not tunes:
        return
    draft.put_known("dataset.dataset_root", folder, DATA)
    for name in ("do_validation", "do_test", "hf_rewrite"):
        draft.put_given(f"dataset.{name}", False, DATA)
    for name in ("hf_dataset", "hf_validation_dataset", "hf_test_dataset", "hf_output_root",
                 "hf_validation_proportion", "max_train_samples"):  # fmt: skip
        draft.put_given(f"dataset.{name}", None, DATA)
    for specs in (PACKS, "offline_packing_specs"):
        draft.put_known(f"dataset.{specs}.num_tokenizer_workers", 1, FILES)
        for name in ("packed_train_data_path", "packed_val_data_path", "packed_metadata_path"):
            draft.put_given(f"dataset.{specs}.{name}", None, DATA)
