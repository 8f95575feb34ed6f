"""Which of upstream's options decide a program's path, and which a rehearsal leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringproof.tables import read_table

_TABLE = MappingProxyType(read_table("ringproof.launch", "left_out.toml"))
DATA = "What depends on real data: tokens, lengths of documents, blends and splits."
"""What it hides that options of the first kind are left out."""

DROPPED: Mapping[str, str] = MappingProxyType(
    {
        name: hides
        for kind in _TABLE["dropped"]
        for hides in (kind["hides"],)
        for name in kind["options"].split()
    }
)
"""Options that are left out, with what that hides. Their values need not be known."""

QUANTIZED = frozenset(_TABLE["kinds"]["quantized"].split())
"""Options of reduced precision, which a rehearsal on CPUs leaves out."""

HALF = frozenset(_TABLE["kinds"]["half"].split())
"""Options that only bfloat16 or float16 training takes, besides the dtype itself."""

HARDWARE = frozenset(_TABLE["kinds"]["hardware"].split())
"""Options that need what a machine without GPUs does not have."""

ENVIRONMENT = (
    "NVTE_", "CUDA_DEVICE_MAX_CONNECTIONS", "MEGATRON_", "MCORE_", "NCCL_ALGO",
    "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
"""Prefixes of variables that decide the path and are handed on."""
