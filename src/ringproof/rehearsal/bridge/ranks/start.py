"""Run a script that trains with Megatron-Bridge, with its configuration changed before it trains.

Its command line is a JSON object (see `ringproof.rehearsal.bridge.rehearsing`), then the script and
its arguments. Bridge's own ``runtime_config_update`` is the first thing that ``pretrain`` calls,
and ``finetune`` calls ``pretrain``; there the overrides are put, by Bridge's own parser of them.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import importlib
import inspect
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ringproof.errors import InputError
from ringproof.rehearsal.bridge.ranks import samples
from ringproof.rehearsal.rank import doubles, recipes
from ringproof.rehearsal.rank.probe import built, count_targets, hand_over
from ringproof.rehearsal.standins.guard import wrapped
from ringproof.rehearsal.verl.model import HEAD, Divisors, tiny_model

MOST_DEPTH = 5
LOCAL = "FinetuningDatasetConfig"
REQUIRED = "_checkpoint_load_required"
PLAIN = (bool, int, float, str, type(None))


class _Read(BaseException):
    """The configuration is complete, and nothing is trained."""


def main() -> None:
    """Run the script."""
    asked, script, *arguments = json.loads(sys.argv[1]), *sys.argv[2:]
    bridge: Any = importlib.import_module("megatron.bridge")
    from_config, divisors = bridge.AutoBridge.from_hf_config, asked["divisors"]
    hub = recipes.without_hub(
        bridge.AutoBridge, lambda name: _model_of(name, divisors, from_config)
    )
    training: Any = importlib.import_module("megatron.bridge.training.pretrain")
    own = training.runtime_config_update

    def read(config: Any) -> NoReturn:
        columns = _columns(getattr(config, "dataset", None))
        samples.write(Path(asked["data"]), asked["vocabulary"], columns)
        hand_over({"config": plain(config), "hub": hub, "doubles": doubles.installed()})
        raise _Read

    def change(config: Any) -> None:
        hand_over({"doubles": doubles.installed()})
        _change(config, asked)
        own(config)

    training.runtime_config_update = change if "words" in asked else read
    step: Any = importlib.import_module("megatron.bridge.training.gpt_step")
    step.get_batch = wrapped(step.get_batch, _counted)
    sys.argv = [script, *arguments]
    # As for a program that Python starts; what it imports may lie in a folder of the user.
    sys.path.insert(0, str(Path(script).parent))
    sys.dont_write_bytecode = True
    try:
        runpy.run_path(script, run_name="__main__")
    except _Read:
        return


def _counted(given: inspect.BoundArguments, get_batch: Callable[[], Any]) -> Any:
    """Count the targets of a batch, which Bridge's step gives the loss and not the model."""
    batch, stages = get_batch(), given.arguments["pg_collection"].pp
    if stages.rank() == stages.size() - 1:
        count_targets(*batch[1:3])
    return batch


def _model_of(name: str, given: dict[str, int], from_config: Any) -> Any:
    """Let Bridge itself translate a tiny configuration of the family of a model of a hub.

    A model whose family is not known gets one of Bridge's providers with no family's settings.
    """
    try:
        fields = dict(tiny_model(name, Divisors(**given)).config)
    except InputError:
        return recipes.of_no_family({})
    fields["hidden_size"] = HEAD * fields["num_attention_heads"]
    kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[fields["model_type"]]
    config = AutoConfig.for_model(**fields, architectures=[kind], dtype="bfloat16")
    return from_config(config)


def _change(config: Any, asked: dict[str, Any]) -> None:
    """Put the overrides, and what no override can say: the precision, and equal weights."""
    config.dataset = _local(config.dataset)
    changes: Any = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    changes.process_config_with_overrides(config, cli_overrides=asked["words"])
    if hasattr(config, REQUIRED):  # since 0.6; the overrides took the checkpoint away
        setattr(config, REQUIRED, False)
    model = config.model
    for kind in (model, getattr(model, "transformer", None)):
        for name in ("params_dtype", "pipeline_dtype", "autocast_dtype"):
            if asked["dtype"] == "float32" and hasattr(kind, name):
                setattr(kind, name, torch.float32)
    if hasattr(model, "register_pre_wrap_hook"):
        model.register_pre_wrap_hook(_drawn, prepend=True)


def _local(dataset: Any) -> Any:
    """Return a data set for fine-tuning that reads files, for one that first reads a hub."""
    if not hasattr(dataset, "process_example_fn"):
        return dataset
    local = next(kind for kind in type(dataset).__mro__ if kind.__name__ == LOCAL)
    names = [field.name for field in dataclasses.fields(local) if field.init]
    return local(**{name: getattr(dataset, name) for name in names})


def _columns(dataset: Any) -> tuple[str, ...]:
    """Return the columns of questions and answers, beside which 0.6 refuses conversations."""
    chats = (getattr(dataset, "dataset_kwargs", None) or {}).get("chat")
    if chats or not hasattr(dataset, "preprocessing"):
        return ()
    builder: Any = importlib.import_module("megatron.bridge.data.builders.gpt_sft")
    local = copy.copy(dataset)
    local.hf_dataset = None  # as it is where the files are read
    chosen = builder.resolve_gpt_sft_preprocessing(local)
    names = ("prompt_column", "completion_column")
    return tuple(getattr(chosen, name) for name in names if hasattr(chosen, name))


def _drawn(chunks: list[Any]) -> list[Any]:
    for chunk in chunks:
        built(chunk)
    return chunks


def plain(value: Any, depth: int = 0) -> Any:
    """Return the settings of a configuration that JSON can hold; others are left out."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, torch.dtype | Path):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [plain(one, depth + 1) for one in value[: MOST_DEPTH**4]]
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    if depth >= MOST_DEPTH or not (isinstance(value, dict) or dataclasses.is_dataclass(value)):
        return "..."
    return {str(name): plain(one, depth + 1) for name, one in fields.items()}


if __name__ == "__main__":
    main()
