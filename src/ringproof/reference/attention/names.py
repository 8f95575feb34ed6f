"""The names by which communication types and kernels are chosen."""

from __future__ import annotations

# Megatron-LM's values of ``cp_comm_type``.
COMM_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
KERNEL_NAMES = ("auto", "sdpa", "reference")
