"""What a model brings along that decides context parallelism and is not in the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")

_LINEAR = MappingProxyType({"experimental_attention_variant": "gated_delta_net"})
_LATENT = MappingProxyType({"multi_latent_attention": "true"})
_SPARSE = MappingProxyType({**_LATENT, "experimental_attention_variant": "dsa"})
MODELS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        r"gpt[-_]oss": MappingProxyType({"softmax_type": "learnable", "window_size": "(127, 0)"}),
        r"qwen3[-_]?next|qwen3[._p]?[56](?![0-9])": _LINEAR,
        r"deepseek[-_]?v3[._]2|glm[-_]?5|glm_moe_dsa": _SPARSE,
        r"deepseek[-_]?v[23]|kimi[-_]?k2|moonlight": _LATENT,
    }
)
"""By a pattern of the names of a model, its settings as Megatron-LM names them.

The first pattern that occurs counts.
"""
_QWEN2 = r"qwen[-_]?2(?:[._]?5)?(?:[-_](?:instruct|coder|math))?[-_]"
_QWEN3 = r"qwen[-_]?3[-_](?!vl|omni|next|coder)"
_LLAMA = r"llama[-_]?3(?:[._]?[123])?[-_]"
HEADS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        r"gpt[-_]oss": (64, 8),
        rf"{_QWEN2}(?:0[._p]5b|500m)": (14, 2),
        rf"{_QWEN2}1[._p]5b": (12, 2),
        rf"(?:{_QWEN2}|qwen2[._]?5[-_]vl[-_])3b": (16, 2),
        rf"(?:{_QWEN2}|qwen2[._]?5[-_]vl[-_])7b": (28, 4),
        rf"{_QWEN2}(?:14|32)b": (40, 8),
        rf"{_QWEN2}72b": (64, 8),
        rf"{_QWEN3}(?:0[._p]6b|600m|1[._p]7b)": (16, 8),
        rf"{_QWEN3}30b[-_]a3b|qwen3[-_]coder[-_]30b[-_]a3b": (32, 4),
        rf"{_QWEN3}235b[-_]a22b": (64, 4),
        rf"{_QWEN3}[48]b": (32, 8),
        rf"{_QWEN3}14b": (40, 8),
        rf"{_QWEN3}32b": (64, 8),
        rf"{_LLAMA}(?:1|8)b": (32, 8),
        rf"{_LLAMA}3b": (24, 8),
        rf"{_LLAMA}70b": (64, 8),
        rf"{_LLAMA}405b": (128, 8),
    }
)
"""By a pattern of the names of a model, its query and key-value heads.

Most are those of the model providers of Megatron-Bridge 0.3.1 (``models/qwen``, ``models/llama``).
"""


def settings_of_model(names: str) -> Mapping[str, str]:
    """Return the settings of the model that is named in a text; empty for any other."""
    found = dict(_first(MODELS, names) or {})
    query, groups = _first(HEADS, names) or (0, 0)
    if query:
        found |= {"num_attention_heads": str(query), "num_query_groups": str(groups)}
    return MappingProxyType(found)


def _first(known: Mapping[str, T], names: str) -> T | None:
    """Return what is known by the first pattern that occurs in a text."""
    found = (given for pattern, given in known.items() if re.search(pattern, names, re.IGNORECASE))
    return next(found, None)
