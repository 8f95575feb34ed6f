"""Which program a configuration is written for, by the names that only that program has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ringproof.doctor.settings import TITLES
from ringproof.errors import InputError, shown

BRIDGE = frozenset(
    (
        "model", "ddp", "train", "dataset", "dist", "checkpoint", "optimizer", "logger", "rng",
        "scheduler", "profiling", "tokenizer", "mixed_precision", "comm_overlap", "validation",
    )
)  # fmt: skip
"""Sections of a configuration of Megatron-Bridge."""
PACK = ("packed_sequence_specs.packed_sequence_size", "offline_packing_specs.packed_sequence_size")
"""Fields of Megatron-Bridge that say how long a packed sequence is."""
_SIGNS: Mapping[str, str] = MappingProxyType(
    {
        "verl": r"actor_rollout_ref\..*|critic\.(megatron|model|optim)\..*|engine\.\w+"
        r"|data\.(max_token_len_per_gpu|pad_mode)|algorithm\.adv_estimator"
        r"|model\.partial_pretrain|ulysses_sequence_parallel_size",
        "nemo-rl": r"policy\.(megatron_cfg|dtensor_cfg|sequence_packing|dynamic_batching)\..*"
        r"|policy\.(make_sequence_length_divisible_by|max_total_sequence_length|model_name)",
        "skyrl": r"trainer\.(policy|ref|critic)\.(megatron_config|model|fsdp_config)\..*"
        r"|(trainer\.)?placement\..*|megatron_config\.\w+|generator\.(inference_engine|num_inference_engines).*",
        "roll": r"(actor_train|actor_infer|reference|critic)\.(strategy_args|training_args"
        r"|model_args|infer_batch_size)\b.*",
        "automodel": r"step_scheduler\..*|distributed\.(cp|tp|pp|dp)_size"
        r"|distributed\.strategy",
        "torchtitan": r"(parallelism|experimental)\.(context|tensor|pipeline|data)_parallel\w*"
        r"|activation_checkpoint\.mode|job\.dump_folder",
        "nemo": r"trainer\.(strategy|devices|num_nodes|precision|accelerator)\b.*|exp_manager\..*",
        "llama-factory": r"finetuning_type|cutoff_len|neat_packing|dataset_dir",
        "ms-swift": r"padding_free|megatron_extra_kwargs|mcore_model|split_dataset_ratio"
        r"|sequence_parallel_size|train_type|tuner_type",
        "megatron": r"(language_model|model_parallel)\..*",
    }
)
"""By program, fields that only it has. The first program with one is taken."""
_BRIDGE_FIELDS = re.compile(
    r"(?:\w+\.)?(?:model\.\w*_parallel\w*|model\.(?:cp_comm_type|seq_length|num_layers|hidden_size"
    r"|calculate_per_token_loss|softmax_type|window_size|cuda_graph_impl)"
    r"|(?:train|ddp|dist|checkpoint|comm_overlap|rng|scheduler|validation)\.\w+"
    r"|dataset\.(?:packed_sequence_specs|offline_packing_specs|dataset_kwargs|seq_length)\b.*)"
)
MOST_NAMES = 3
"""Fields that a message names."""


def program_of(fields: Iterable[str]) -> str:
    """Return the program whose fields these are; empty where none is known to claim them."""
    names = list(fields)
    for program, pattern in _SIGNS.items():
        if any(re.fullmatch(pattern, name) for name in names):
            return program
    return "bridge" if any(map(_BRIDGE_FIELDS.fullmatch, names)) else ""


def not_examined(names: Iterable[str], source: str) -> InputError:
    """Return the error for fields that no program claims."""
    given = ", ".join(shown(name) for name in list(names)[:MOST_NAMES]) or "none"
    known = ", ".join(title for name, title in TITLES.items() if name != "megatron")
    sentence = (
        f"not examined: no program that doctor knows has these settings ({given}); "
        f"give a configuration of Megatron-LM, {known}"
    )
    return InputError(source, sentence)
