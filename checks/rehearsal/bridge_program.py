"""A script that trains with Megatron-Bridge's own ``pretrain``, and calls into Bridge for ranks.

Its command line is one JSON object: ``iterations``, ``global_batch``, ``model``, the fields of
Bridge's ``GPTModelProvider`` that a case sets (``context_parallel_size``, ``cp_comm_type``,
``hierarchical_context_parallel_sizes``, ...), and ``dist``, those of its ``DistributedInitConfig``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
import types
from typing import Any

import torch

SEQUENCE = 256


def without_restarts() -> None:
    """Let Bridge import nvidia-resiliency-ext, of which the package index has no release it takes.

    Bridge names one of its classes in an annotation. Whatever else it needs of that package, to
    restart ranks or to save checkpoints in the background, is missing, as without it.
    """
    name = "nvidia_resiliency_ext"
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        package = types.ModuleType(name)
        inprocess = types.ModuleType("nvidia_resiliency_ext.inprocess")
        vars(package).update(__path__=[], inprocess=inprocess)
        vars(inprocess)["CallWrapper"] = type("CallWrapper", (), {})
        sys.modules.update({module.__name__: module for module in (package, inprocess)})


def with_compiled_helpers() -> None:
    """Let Bridge find the data helpers compiled, as they are in Megatron-Core's wheel."""
    utils = importlib.import_module("megatron.core.datasets.utils")
    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is not None:
        vars(utils)["compile_helpers"] = lambda: None


if importlib.util.find_spec("megatron") and importlib.util.find_spec("megatron.bridge"):
    without_restarts()
    with_compiled_helpers()
    # Before a rank runs `main`, so that it can watch the training loop.
    importlib.import_module("megatron.bridge.training.pretrain")


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
    training = {"train_iters": iterations, "global_batch_size": case["global_batch"]}
    sections, evaluation = {}, {"eval_interval": 10 * iterations, "eval_iters": 1}
    if hasattr(bridge, "ValidationConfig"):
        sections["validation"] = bridge.ValidationConfig(**evaluation)
    else:  # 0.3
        training |= evaluation
    return bridge.ConfigContainer(
        **sections,
        model=model(case["model"]),
        train=bridge.TrainingConfig(**training, micro_batch_size=1),
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
        dist=bridge.DistributedInitConfig(**case.get("dist", {})),
    )


def watch_flags() -> None:
    """Hand over the names that Bridge passes to the function that makes process groups."""
    from megatron.core import parallel_state

    from ringproof.rehearsal.rank.probe import hand_over

    initialize = parallel_state.initialize_model_parallel

    @functools.wraps(initialize)  # Bridge looks at the signature
    def watched(*arguments: Any, **named: Any) -> None:
        hand_over(sorted(named))
        initialize(*arguments, **named)

    parallel_state.initialize_model_parallel = watched


def provider_levels(named: dict[str, Any]) -> list[int]:
    """Return the sizes of the levels that ``provider.initialize_model_parallel(**named)`` makes."""
    from megatron.core import parallel_state

    sizes = {"context_parallel_size": 4, "hierarchical_context_parallel_sizes": [2, 2]}
    model({"cp_comm_type": "a2a+p2p", **sizes}).initialize_model_parallel(**named)
    groups = parallel_state.get_hierarchical_context_parallel_groups(check_initialized=False)
    return [group.size() for group in groups or ()]


def loaded_sizes(overrides: dict[str, Any]) -> dict[str, Any]:
    """Return what ``load_megatron_model`` builds of a checkpoint that was saved with two levels.

    Its own two neighbours are replaced, the reader of a checkpoint and the builder of a model.
    """
    from megatron.bridge.training import model_load_save as loading

    names = ("context_parallel_size", "hierarchical_context_parallel_sizes")
    saved = model({"cp_comm_type": "a2a+p2p", **dict(zip(names, (4, [2, 2]), strict=True))})
    vars(loading)["load_model_config"] = lambda path: (saved, None)
    vars(loading)["build_and_load_model"] = lambda path, config, *rest: config
    built = loading.load_megatron_model("checkpoint", mp_overrides=overrides)
    return {name: getattr(built, name) for name in names}


def overridden(words: list[str]) -> dict[str, Any]:
    """Return the CP size of a builder-backed configuration after overrides, or their refusal."""
    from megatron.bridge.models.gpt.gpt_builder import GPTModelConfig
    from megatron.bridge.training.utils import omegaconf_utils
    from megatron.core.transformer import TransformerConfig

    layers = TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=8)
    config = container({"iterations": 1, "global_batch": 4, "model": {}})
    config.model = GPTModelConfig(transformer=layers, vocab_size=256)
    try:
        omegaconf_utils.process_config_with_overrides(config, cli_overrides=words)
    except omegaconf_utils.OverridesError as error:
        return {"refused": str(error)}
    return {"size": config.model.transformer.context_parallel_size}


def main() -> None:
    """Train."""
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(container(json.loads(sys.argv[1])), forward_step)


if __name__ == "__main__":
    main()
