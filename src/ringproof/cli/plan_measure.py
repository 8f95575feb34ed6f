"""A quick measurement of attention on this machine, for calibration."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from ringproof.errors import InputError
from ringproof.reference.planning.basis import Sample
from ringproof.reference.planning.timing import StepCost

_REPEATS = 5
_MOST_LENGTHS = 32


def measured(lengths: Sequence[int], setting: StepCost) -> tuple[Sample, ...]:
    """Time causal attention, forward and backward, at some lengths on one device.

    One layer is timed, the median of some repeats, and taken times the layers: on the GPU in
    bf16, else on the CPU in float32. Nothing is learnt of links and other work.

    Raises:
        InputError: torch is not installed, too many lengths, or the memory does not suffice.
    """
    if len(lengths) > _MOST_LENGTHS:
        raise InputError("--measure", len(lengths), f"over {_MOST_LENGTHS} lengths", "give fewer")
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        remedy = "install torch, or give SAMPLES"
        raise InputError("--measure", None, "needs the package torch", remedy) from error
    found = []
    for length in lengths:
        try:
            seconds = _seconds(torch, length, setting)
        except (RuntimeError, MemoryError) as error:
            problem = "attention of this length failed: " + str(error).split("\n", 1)[0][:120]
            raise InputError("--measure", length, problem, "give shorter lengths") from error
        layers = setting.shape.attention_layers
        found.append(Sample(length, 1, seconds * layers, attention_only=True))
    return tuple(found)


def _seconds(torch: Any, length: int, setting: StepCost) -> float:
    """Forward and backward of one layer's attention."""
    on_gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    shape, heads = setting.shape, setting.shape.heads // setting.tp

    def tensor(width: int) -> Any:
        return torch.randn(1, heads, length, width, device=device, dtype=dtype, requires_grad=True)

    q, k, v = tensor(shape.head_dim), tensor(shape.head_dim), tensor(shape.v_head_dim)
    attention = torch.nn.functional.scaled_dot_product_attention
    gradient = torch.randn_like(attention(q, k, v, is_causal=True))

    def once() -> None:
        attention(q, k, v, is_causal=True).backward(gradient)
        if on_gpu:
            torch.cuda.synchronize()

    once()
    return statistics.median(_timed(once) for _ in range(_REPEATS))


def _timed(once: Callable[[], None]) -> float:
    started = time.perf_counter()
    once()
    return time.perf_counter() - started
