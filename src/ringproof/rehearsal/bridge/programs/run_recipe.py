"""The program in the place of Bridge's ``run_recipe.py``, which its wheels lack.

It builds a recipe, puts overrides as Bridge does, and trains with Bridge's ``pretrain`` or
``finetune``.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from types import MappingProxyType
from typing import Any

from ringproof.rehearsal.rank.recipes import recipe_of

SHORT = MappingProxyType(
    {
        ("-ms", "--max_steps"): "train.train_iters",
        ("-gb", "--global_batch_size"): "train.global_batch_size",
        ("-mb", "--micro_batch_size"): "train.micro_batch_size",
        ("-tp", "--tensor_model_parallel_size"): "model.tensor_model_parallel_size",
        ("-pp", "--pipeline_model_parallel_size"): "model.pipeline_model_parallel_size",
        ("-cp", "--context_parallel_size"): "model.context_parallel_size",
        ("-ep", "--expert_model_parallel_size"): "model.expert_model_parallel_size",
        ("-etp", "--expert_tensor_parallel_size"): "model.expert_tensor_parallel_size",
        ("-vp", "--virtual_pipeline_model_parallel_size"):
            "model.virtual_pipeline_model_parallel_size",
    }
)  # fmt: skip
"""Options that stand for an override."""


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(prog="run_recipe.py", allow_abbrev=False)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--mode", choices=("pretrain", "finetune", "sft", "lora", "dora"))
    parser.add_argument("--step_func", "--step-func", default="gpt_step")
    parser.add_argument("--peft_scheme", dest="peft")
    parser.add_argument("--packed_sequence", action="store_true", default=None)
    parser.add_argument("-sl", "--seq_length", type=int)
    for names, field in SHORT.items():
        parser.add_argument(*names, dest=field)
    options, overrides = parser.parse_known_args()
    recipe = recipe_of(options.recipe)
    given = {name: getattr(options, name) for name in ("peft", "packed_sequence", "seq_length")}
    takes = inspect.signature(recipe).parameters
    config = recipe(**{k: v for k, v in given.items() if k in takes and v is not None})
    short = [f"{field}={value}" for field in SHORT.values()
             if (value := getattr(options, field)) is not None]  # fmt: skip
    changes: Any = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    changes.process_config_with_overrides(config, cli_overrides=[*short, *overrides] or None)
    mode = options.mode or ("pretrain" if "pretrain" in options.recipe else "finetune")
    mode = mode if mode == "pretrain" else "finetune"
    train = getattr(importlib.import_module(f"megatron.bridge.training.{mode}"), mode)
    step = importlib.import_module(f"megatron.bridge.training.{options.step_func}")
    train(config=config, forward_step_func=vars(step)["forward_step"])


if __name__ == "__main__":
    main()
