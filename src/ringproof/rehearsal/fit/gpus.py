"""GPUs by name, and what of their memory no tensor of a program takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.errors import InputError, shown

GIB = 1 << 30
MIB = 1 << 20
CUBLAS_BYTES = 64 * MIB
CUBLAS_SOURCE = (
    "two cuBLAS workspaces of 32 MiB, which torch allocates on Hopper for the forward and the "
    "backward thread; the recorded runs of upstream on H100 differ from the ledger by this number"
)
CONTEXT_BYTES = 1 * GIB
CONTEXT_SOURCE = (
    "an allowance, not a measurement, for the CUDA context, loaded kernels and NCCL's buffers, "
    "which torch does not count"
)


@dataclass(frozen=True)
class Gpu:
    """A GPU's memory.

    Attributes:
        bytes: Memory that programs may use.
    """

    name: str
    bytes: int


NAMED: Mapping[str, int] = MappingProxyType(
    {"a100": 81920, "h100": 81559, "h200": 143771, "b200": 183359}
)
"""MiB that ``nvidia-smi`` names as the total of the largest SXM version of each."""


def gpu(text: str) -> Gpu:
    """Return the GPU of a name, or one with so many GiB.

    Raises:
        InputError: It is neither.
    """
    name = text.lower()
    if name in NAMED:
        return Gpu(name.upper(), NAMED[name] * MIB)
    number = re.fullmatch(r"(\d{1,4}(?:\.\d+)?)(gib)?", name)
    if number is None or not float(number[1]):
        known = ", ".join(NAMED)
        remedy = f"use one of {known}, or a number of GiB"
        raise InputError("--gpu", f"{shown(text)} is not a GPU; {remedy}")
    return Gpu(f"{number[1]} GiB", int(float(number[1]) * GIB))
