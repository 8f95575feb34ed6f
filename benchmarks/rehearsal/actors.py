"""What the programs around frameworks share: options, doubles, process groups and a small model."""

import argparse
import os
import sys
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig

VOCABULARY, SAMPLES, STEPS = 128, 8, 100


def options_of(framework):
    """Return a parser of the options that all programs have.

    Args:
        framework: Name of the option that gives the folder of the framework's checkout.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument(f"--{framework}", required=True, help="folder of a checkout")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--cp", type=int, default=1)
    parser.add_argument("--cp-comm-type", default="p2p")
    return parser


def start(options, folders, doubles):
    """Let the framework be imported, and make the process groups.

    Args:
        folders: Where the framework is imported from.
        doubles: Modules that it imports and that a training step does not call.
    """
    sys.path[1:1] = folders
    for name in doubles:
        sys.modules.setdefault(name, MagicMock(name=name))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=options.tp, context_parallel_size=options.cp
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)


def built(options, length, **fields):
    """Return a small model in megatron-core's data parallel wrapper, and its optimizer.

    Args:
        length: Largest number of tokens of a sequence.
        fields: Further fields of the model's configuration.
    """
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        tensor_model_parallel_size=options.tp,
        context_parallel_size=options.cp,
        cp_comm_type=options.cp_comm_type,
        pipeline_dtype=torch.float32,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # which variable lengths ask for
        **fields,
    )
    model = GPTModel(
        config,
        get_gpt_layer_with_transformer_engine_spec(num_experts=config.num_moe_experts),
        vocab_size=VOCABULARY,
        max_sequence_length=length,
        position_embedding_type="rope",
    ).cuda()
    model = data_parallel(model)
    return model, optimizer_of([model])


def data_parallel(model):
    """Return a model in megatron-core's data parallel wrapper."""
    return DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)


def optimizer_of(models):
    """Return megatron-core's Adam for models in its data parallel wrapper."""
    chosen = OptimizerConfig(optimizer="adam", lr=1e-3, params_dtype=torch.float32)
    return get_megatron_optimizer(chosen, models)
