"""A GPT of the layers that the options ask for, built by the wheel's own model code."""

from __future__ import annotations

import argparse
from typing import Any

from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_transformer_block_with_experimental_attention_variant_spec,
)
from megatron.core.models.gpt.heterogeneous.heterogeneous_layer_specs import (
    get_gpt_heterogeneous_layer_spec,
)
from megatron.core.transformer.spec_utils import import_module
from megatron.training import get_args
from megatron.training.arguments import core_transformer_config_from_args

from ringproof.rehearsal.wheels.calls import called, named

ENGINE = "transformer_engine"
OPTIMIZED = "inference_optimized"
LAYER = (
    "moe_grouped_gemm", "qk_layernorm", "multi_latent_attention", "experimental_attention_variant",
    "qk_l2_norm", "normalization", "use_kitchen", "use_te_activation_func",
    "use_kitchen_attention", "kitchen_attention_backend", "mla_down_proj_fusion",
    "use_grouped_gemm_for_dense_mlp",
)  # fmt: skip
"""Fields of Megatron's configuration that say what a layer is made of."""
MODEL = (
    "fp16_lm_cross_entropy", "position_embedding_type", "rotary_percent", "rotary_base",
)  # fmt: skip


def provide(
    pre_process: bool = True,
    post_process: bool = True,
    vp_stage: int | None = None,
    config: Any = None,
    pg_collection: Any = None,
) -> GPTModel:
    """Build a chunk of the model; the arguments are those of Megatron's model providers."""
    args = get_args()
    if config is None:
        config = core_transformer_config_from_args(args)
    layers = _layers(args, config, vp_stage)
    ahead = None
    if args.mtp_num_layers is not None:
        ahead = _predicting_ahead(args, config, layers, vp_stage)
    return GPTModel(
        config=config,
        transformer_layer_spec=layers,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        rope_scaling=args.use_rope_scaling,
        mtp_block_spec=ahead,
        vp_stage=vp_stage,
        pg_collection=pg_collection,
        **named(args, MODEL),
    )


def _layers(args: argparse.Namespace, config: Any, vp_stage: int | None) -> Any:
    """Return the specification of all layers of a chunk."""
    if args.spec is not None:
        return import_module(args.spec)
    if args.experimental_attention_variant is not None:
        return get_transformer_block_with_experimental_attention_variant_spec(
            config=config, vp_stage=vp_stage
        )
    block = {
        "use_transformer_engine": args.transformer_impl == ENGINE,
        **named(args, ("normalization", "qk_l2_norm")),
    }
    if args.num_experts:
        return gpt_layer_specs.get_gpt_decoder_block_spec(config, vp_stage=vp_stage, **block)
    if args.heterogeneous_layers_config_path is not None:
        return get_gpt_heterogeneous_layer_spec(config, args.transformer_impl == ENGINE)
    return _layer(args, config)


def _layer(args: argparse.Namespace, config: Any) -> Any:
    """Return the specification of one layer; all are the same."""
    if args.transformer_impl == ENGINE:
        make = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec
    elif args.transformer_impl == OPTIMIZED:
        make = gpt_layer_specs.get_gpt_layer_with_inference_spec
    else:
        make = gpt_layer_specs.get_gpt_layer_local_spec
    return called(make, num_experts=config.num_moe_experts, **named(config, LAYER))


def _predicting_ahead(
    args: argparse.Namespace, config: Any, layers: Any, vp_stage: int | None
) -> Any:
    """Return the specification of the layers of multi-token prediction, made of the last one."""
    uses_engine = args.transformer_impl == ENGINE
    if hasattr(layers, "layer_specs") and not layers.layer_specs:
        last = _layer(args, config)  # this stage has no layer from which to take it
    else:
        last = gpt_layer_specs.get_gpt_decoder_layer_specs(
            config,
            use_transformer_engine=uses_engine,
            vp_stage=vp_stage,
            **named(args, ("normalization", "qk_l2_norm")),
        )[-1]
    return gpt_layer_specs.get_gpt_mtp_block_spec(
        config, last, use_transformer_engine=uses_engine, vp_stage=vp_stage
    )
