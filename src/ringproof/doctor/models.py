"""What a model brings along that decides context parallelism and is not in the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_LINEAR = MappingProxyType({"experimental_attention_variant": "gated_delta_net"})
_LATENT = MappingProxyType({"multi_latent_attention": "true"})
MODELS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        r"gpt[-_]oss": MappingProxyType(
            {
                "softmax_type": "learnable",
                "window_size": "(127, 0)",
                "num_attention_heads": "64",
                "num_query_groups": "8",
            }
        ),
        r"qwen3[-_]?next|qwen3[._]?5": _LINEAR,
        r"deepseek[-_]?v[23]|kimi[-_]?k2|moonlight": _LATENT,
    }
)
"""By a pattern of the names of a model, its settings as Megatron-LM names them."""


def settings_of_model(names: str) -> Mapping[str, str]:
    """Return the settings of the model that is named in a text; empty for any other."""
    found = (given for pattern, given in MODELS.items() if re.search(pattern, names, re.IGNORECASE))
    return next(found, MappingProxyType({}))
