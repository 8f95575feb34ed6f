"""A tiny model of the family that a launch trains, as a configuration for transformers.

It comes from the launch's own ``config.json`` where that is at hand, otherwise from the name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError, shown
from ringproof.files import read_input

MAX_BYTES = 1 << 20
VOCABULARY = 128
HEAD = 16  # width of an attention head
EXPERTS = "num_experts"
FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        r"qwen3-?(coder-)?\d+b-a\d+b|qwen3moe|qwen3-moe": "qwen3_moe",
        r"qwen3(?!.*(vl|next|omni))": "qwen3",
        r"qwen-?(2|2\.5)-?(math-|coder-)?\d(?!.*(vl|omni))": "qwen2",
        r"qwen2\.5-(math|coder)": "qwen2",
        r"llama": "llama",
        r"deepseek-llm|deepseek-r1-distill-llama": "llama",
        r"deepseek-r1-distill-qwen": "qwen2",
        r"mixtral": "mixtral",
        r"mistral": "mistral",
    }
)
"""Regular expressions of names of models, and their types in transformers."""
KNOWN_TYPES = ("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "mixtral")
EXPERT_FIELDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "qwen3_moe": {EXPERTS: "num_experts", "width": "moe_intermediate_size"},
        "mixtral": {EXPERTS: "num_local_experts", "width": "intermediate_size"},
    }
)
KEPT = (
    "tie_word_embeddings", "attention_bias", "hidden_act", "rms_norm_eps", "norm_topk_prob",
    "rope_theta", "rope_scaling", "rope_parameters", "mlp_only_layers", "decoder_sparse_step",
)  # fmt: skip
DROPPED = ("use_sliding_window", "sliding_window", "layer_types", "max_window_layers")


@dataclass(frozen=True)
class TinyModel:
    """A configuration for transformers.

    Attributes:
        source: Where its family is from.
        left_out: Fields on windows of attention that only the launch's own model has.
    """

    config: Mapping[str, Any]
    source: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Divisors:
    """What the sizes of a model have to be multiples of.

    Attributes:
        heads: Ranks that divide the key and value heads: TP, and CP where all-to-all divides them.
        layers: Pipeline stages, virtual ones included.
        experts: Ranks of expert parallelism.
    """

    heads: int
    layers: int
    experts: int


def tiny_model(path: str, divisors: Divisors) -> TinyModel:
    """Return a tiny model of the family of ``path``, a folder or the name of a model.

    Raises:
        InputError: The family is not known here.
    """
    file = Path(path).expanduser() / "config.json"
    given: dict[str, Any] = {}
    if file.is_file():
        given, source = _read(file), f"{shown(path)}, config.json"
        kind = str(given.get("model_type", ""))
    else:
        name = path.rstrip("/").rpartition("/")[2].lower()
        found = (kind for text, kind in FAMILIES.items() if re.search(text, name))
        kind, source = next(found, ""), f"the name {shown(name)}"
    if kind not in KNOWN_TYPES:
        sentence = (
            f"the family of {shown(path)} is not known here{f' ({shown(kind)})' if kind else ''}; "
            f"name a folder with a config.json of {', '.join(KNOWN_TYPES)}"
        )
        raise InputError("model.path", sentence)
    left_out = tuple(name for name in DROPPED if given.get(name))
    return TinyModel(_config(kind, given, divisors), source, left_out)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_input(file, MAX_BYTES, remedy="name another model"))
    except ValueError:
        raise InputError(str(file), "the file is not JSON; correct it") from None
    if not isinstance(found, dict):
        raise InputError(str(file), "the file holds no mapping; correct it")
    return found


def _config(kind: str, given: Mapping[str, Any], divisors: Divisors) -> dict[str, Any]:
    key_heads = max(2, divisors.heads)
    heads = 2 * key_heads
    config: dict[str, Any] = {name: given[name] for name in KEPT if given.get(name) is not None}
    config |= {
        "model_type": kind,
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 32 * max(4, divisors.heads),
        "num_hidden_layers": max(2, divisors.layers),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": HEAD,
        "max_position_embeddings": 512,
        "initializer_range": 0.05,
    }
    if kind == "qwen2":  # whose heads divide the hidden size
        config["hidden_size"] = HEAD * heads
        del config["head_dim"]
    names = EXPERT_FIELDS.get(kind)
    if names:
        config |= {
            names[EXPERTS]: max(4, divisors.experts),
            names["width"]: 64,
            "num_experts_per_tok": 2,
            "router_aux_loss_coef": 0.0,
        }
    config.setdefault("tie_word_embeddings", False)
    return config
