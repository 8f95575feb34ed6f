"""The names by which communication types and kernels are chosen."""

from __future__ import annotations

from collections.abc import Sequence

from ringproof.errors import InputError

# Megatron-LM's values of ``cp_comm_type``.
COMM_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
KERNEL_NAMES = ("auto", "sdpa", "reference")


def check_name(field: str, value: str, known: Sequence[str]) -> None:
    """Refuse a name that is not one of those known.

    Raises:
        InputError: It is not.
    """
    if value not in known:
        raise InputError(field, value, "unknown name", f"use one of {', '.join(known)}")
