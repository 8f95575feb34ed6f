"""The model and optimizer of the library program, made by megatron-core alone."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_with_transformer_engine_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from ringproof.rehearsal.rank import weights

SEED = 1234
SAME_NAME = (
    "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "normalization",
    "attention_dropout", "hidden_dropout", "context_parallel_size", "cp_comm_type",
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "sequence_parallel",
    "expert_model_parallel_size", "calculate_per_token_loss", "hybrid_context_parallel",
    "hierarchical_context_parallel_sizes", "max_seqlen_per_dp_cp_rank", "mtp_num_layers",
    "recompute_granularity", "recompute_method", "recompute_num_layers", "moe_router_topk",
    "moe_router_load_balancing_type", "moe_token_dispatcher_type", "moe_aux_loss_coeff",
    "moe_ffn_hidden_size", "moe_grouped_gemm",
)  # fmt: skip
LATENT = ("kv_lora_rank", "q_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")


def start_groups(options: argparse.Namespace) -> None:
    """Make the process groups of all parallel axes."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=options.tensor_model_parallel_size,
        pipeline_model_parallel_size=options.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=chunks(options),
        context_parallel_size=options.context_parallel_size,
        hierarchical_context_parallel_sizes=options.hierarchical_context_parallel_sizes,
        hybrid_context_parallel=options.hybrid_context_parallel,
        expert_model_parallel_size=options.expert_model_parallel_size,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(SEED)


def chunks(options: argparse.Namespace) -> int | None:
    """Number of model chunks on a pipeline rank; ``None`` without interleaving."""
    if options.num_layers_per_virtual_pipeline_stage is None:
        return None
    per_rank = options.num_layers // options.pipeline_model_parallel_size
    return int(per_rank // options.num_layers_per_virtual_pipeline_stage)


def configuration(options: argparse.Namespace) -> TransformerConfig:
    """Return megatron-core's configuration of the model and its parallelism."""
    fields: dict[str, Any] = {
        name: value for name in SAME_NAME if (value := getattr(options, name)) is not None
    }
    dtype = getattr(torch, options.dtype)
    fields |= {
        "params_dtype": dtype, "pipeline_dtype": dtype, "bf16": options.bf16,
        "gated_linear_unit": options.swiglu, "add_bias_linear": not options.disable_bias_linear,
        "activation_func": torch.nn.functional.silu if options.swiglu else torch.nn.functional.gelu,
        "num_moe_experts": options.num_experts, "gradient_accumulation_fusion": False,
        "virtual_pipeline_model_parallel_size": chunks(options), "bias_activation_fusion": False,
        "bias_dropout_fusion": False, "apply_rope_fusion": options.dtype != "float64",
        "variable_seq_lengths": False,
        # Megatron's programs refuse batched sends under VPP with two stages: both directions of a
        # batch go between the same two ranks, and are told apart by their order alone.
        "overlap_p2p_comm": chunks(options) is not None, "batch_p2p_comm": chunks(options) is None,
        "deallocate_pipeline_outputs": True,
    }  # fmt: skip
    if options.window_size is not None:
        fields["window_size"] = tuple(int(part) for part in options.window_size.split(","))
    if not options.multi_latent_attention:
        return TransformerConfig(**fields)
    latent = {name: getattr(options, name) for name in LATENT}
    return MLATransformerConfig(**{**fields, **latent, "apply_rope_fusion": False},
                                multi_latent_attention=True)  # fmt: skip


def model_chunks(options: argparse.Namespace, config: TransformerConfig) -> list[Any]:
    """Build this rank's model chunks inside of megatron-core's data parallel wrapper."""
    ddp = DistributedDataParallelConfig(
        overlap_grad_reduce=options.overlap_grad_reduce,
        overlap_param_gather=options.overlap_param_gather,
        use_distributed_optimizer=options.use_distributed_optimizer,
    )
    count = chunks(options)
    built = []
    for stage in [None] if count is None else range(count):
        chunk = _model(options, config, stage)
        weights.draw(chunk)
        for parameter in chunk.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        built.append(DistributedDataParallel(config, ddp, chunk, disable_bucketing=bool(stage)))
    return built


def _model(options: argparse.Namespace, config: TransformerConfig, stage: int | None) -> GPTModel:
    spec = get_gpt_layer_with_transformer_engine_spec(
        num_experts=options.num_experts,
        moe_grouped_gemm=options.moe_grouped_gemm,
        multi_latent_attention=options.multi_latent_attention,
    )
    extra = {}
    if options.mtp_num_layers:
        extra["mtp_block_spec"] = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=True)
    multiple = options.make_vocab_size_divisible_by * options.tensor_model_parallel_size
    vocabulary = -(-(options.vocab_size + 1) // multiple) * multiple
    place = {} if stage is None else {"ignore_virtual": False, "vp_stage": stage}
    return GPTModel(
        config,
        spec,
        vocab_size=vocabulary,
        max_sequence_length=options.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(**place),
        post_process=parallel_state.is_pipeline_last_stage(**place),
        share_embeddings_and_output_weights=not options.untie_embeddings_and_output_weights,
        position_embedding_type=options.position_embedding_type,
        vp_stage=stage,
        **extra,
    )


def optimizer(options: argparse.Namespace, model: list[Any]) -> Any:
    """Return megatron-core's Adam for these chunks."""
    dtype = getattr(torch, options.dtype)
    return get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=options.lr, min_lr=options.min_lr, weight_decay=0.01,
            bf16=options.bf16, params_dtype=dtype, clip_grad=1.0,
            use_distributed_optimizer=options.use_distributed_optimizer,
            overlap_param_gather=options.overlap_param_gather,
        ),
        model,
    )  # fmt: skip
