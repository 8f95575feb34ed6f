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
    "backward thread; with them, the memory between steps of launches that upstream recorded on "
    "H100s is met to 512 bytes where no block is larger than asked for; not measured on other GPUs"
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
        bytes: Its whole memory, as torch reports it where that is known.
    """

    name: str
    bytes: int


NAMED: Mapping[str, int] = MappingProxyType({
    "a100": int(79.25 * GIB), "h100": int(79.11 * GIB), "h200": 143771 * MIB, "b200": 183359 * MIB,
})  # fmt: skip
"""Bytes of the largest SXM version of each.

Of A100 and H100, the total that torch printed in a public report: levihsu/OOTDiffusion issue 235
and vllm-project/vllm issue 27508. Of H200 and B200, the total that ``nvidia-smi`` shows, since no
such report was found; torch's is a little smaller, by about 0.5 GiB on H100.
"""


def gpu(text: str) -> Gpu:
    """Return the GPU of a name, or one with so many GiB.

    Raises:
        InputError: It is neither.
    """
    name = text.lower()
    if name in NAMED:
        return Gpu(name.upper(), NAMED[name])
    number = re.fullmatch(r"(\d{1,4}(?:\.\d+)?)(gib)?", name)
    if number is None or not float(number[1]):
        known = ", ".join(NAMED)
        remedy = f"use one of {known}, or a number of GiB"
        raise InputError("--gpu", f"{shown(text)} is not a GPU; {remedy}")
    return Gpu(f"a GPU of {number[1]} GiB", int(float(number[1]) * GIB))
