"""A script that trains with Megatron-Bridge's own ``pretrain``, on mock data.

Its command line is one JSON object: ``iterations``, ``global_batch`` and ``model``, the fields of
Bridge's ``GPTModelProvider`` that a case sets (``context_parallel_size``, ``cp_comm_type``,
``hierarchical_context_parallel_sizes``, ...).
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

SEQUENCE = 256


def model(changes: dict[str, Any]) -> Any:
    """Return a tiny Llama-like model in float32."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider

    fields: dict[str, Any] = {
        "normalization": "RMSNorm",
        "activation_func": torch.nn.functional.silu,
        "gated_linear_unit": True,
        "position_embedding_type": "rope",
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "num_layers": 2,
        "hidden_size": 64,
        "ffn_hidden_size": 128,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "seq_length": SEQUENCE,
        "make_vocab_size_divisible_by": 128,
        "vocab_size": None,
        "share_embeddings_and_output_weights": False,
        "bf16": False,
        "params_dtype": torch.float32,
        "pipeline_dtype": torch.float32,
    }
    return GPTModelProvider(**fields | changes)


def container(case: dict[str, Any]) -> Any:
    """Return the whole configuration, as a recipe would."""
    from megatron.bridge.training import config as bridge

    iterations = case["iterations"]
    return bridge.ConfigContainer(
        model=model(case["model"]),
        train=bridge.TrainingConfig(
            train_iters=iterations, global_batch_size=case["global_batch"], micro_batch_size=1
        ),
        validation=bridge.ValidationConfig(eval_interval=10 * iterations, eval_iters=1),
        optimizer=bridge.OptimizerConfig(
            optimizer="adam", bf16=False, fp16=False, lr=1e-3, min_lr=1e-3, weight_decay=0.0
        ),
        scheduler=bridge.SchedulerConfig(
            lr_decay_style="constant",
            lr_warmup_iters=0,
            lr_decay_iters=iterations,
            start_weight_decay=0.0,
            end_weight_decay=0.0,
            weight_decay_incr_style="constant",
            override_opt_param_scheduler=True,
        ),
        ddp=bridge.DistributedDataParallelConfig(grad_reduce_in_fp32=True),
        dataset=bridge.MockGPTDatasetConfig(
            random_seed=1234,
            reset_attention_mask=False,
            reset_position_ids=False,
            eod_mask_loss=False,
            seq_length=SEQUENCE,
            num_dataset_builder_threads=1,
            data_sharding=True,
            dataloader_type="single",
            num_workers=0,
        ),
        logger=bridge.LoggerConfig(log_interval=1),
        tokenizer=bridge.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=255),
        checkpoint=bridge.CheckpointConfig(),
        rng=bridge.RNGConfig(seed=1234),
    )


def main() -> None:
    """Train."""
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(container(json.loads(sys.argv[1])), forward_step)


if __name__ == "__main__":
    main()
