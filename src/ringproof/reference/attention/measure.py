"""Measures the time of this attention on this machine, as a first calibration of the planner."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from ringproof.errors import InputError
from ringproof.reference.attention.kernels import FlashKernel
from ringproof.reference.planning.samples import Sample
from ringproof.reference.planning.shapes import ModelShape

LENGTHS = (256, 512, 1024, 2048, 4096)
LONGEST = 1 << 20


def measure_attention(
    shape: ModelShape, lengths: Sequence[int] = LENGTHS, *, repeats: int = 3
) -> tuple[Sample, ...]:
    """Time one sequence per length on one rank: causal attention, forward and backward.

    One layer is timed and multiplied by the model's attention layers. float32 on a CPU, bf16 on
    a GPU.

    Args:
        lengths: Tokens of each sequence.
        repeats: Runs per length after one that is not counted; the shortest is taken.

    Returns:
        One sample per length, CP size 1, marked as attention only.

    Raises:
        InputError: A length or repeat count out of range.
    """
    if repeats < 1:
        raise InputError("repeats", repeats, "is less than 1", "give 1 or more")
    for length in lengths:
        if not 1 <= length <= LONGEST:
            raise InputError("lengths", length, f"is not within 1 to {LONGEST:,}", "correct it")
    return tuple(
        Sample(length, 1, _shortest(shape, length, repeats) * shape.attention_layers, True)
        for length in lengths
    )


def _shortest(shape: ModelShape, length: int, repeats: int) -> float:
    on_gpu = torch.cuda.is_available()
    options = {
        "device": "cuda" if on_gpu else "cpu",
        "dtype": torch.bfloat16 if on_gpu else torch.float32,
    }
    q = torch.randn(1, length, shape.heads, shape.head_dim, **options)
    k = torch.randn(1, length, shape.kv_heads, shape.head_dim, **options)
    v = torch.randn(1, length, shape.kv_heads, shape.v_head_dim, **options)
    grad = torch.randn(1, length, shape.heads, shape.v_head_dim, **options)
    kernel, scale, times = FlashKernel(), q.shape[-1] ** -0.5, []
    for _ in range(repeats + 1):
        started = _now(on_gpu)
        out, lse = kernel.forward(q, k, v, causal=True, scale=scale)
        kernel.backward(grad, (q, k, v), out, lse, causal=True, scale=scale)
        times.append(_now(on_gpu) - started)
    return min(times[1:])


def _now(on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter()
