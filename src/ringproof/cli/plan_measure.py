"""A quick measurement of attention on this machine, for calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ringproof.errors import InputError
from ringproof.reference.planning.samples import Sample
from ringproof.reference.planning.timing import StepCost

_MOST_LENGTHS = 32


def measured(lengths: Sequence[int], setting: StepCost) -> tuple[Sample, ...]:
    """Time causal attention, forward and backward, at some lengths on one device.

    See `ringproof.reference.attention.measure`. Nothing is learnt of links and other work.

    Raises:
        InputError: torch is not installed, too many lengths, one that is too long, or the memory
            does not suffice.
    """
    if len(lengths) > _MOST_LENGTHS:
        raise InputError("--measure", len(lengths), f"over {_MOST_LENGTHS} lengths", "give fewer")
    try:
        from ringproof.reference.attention.measure import measure_attention
    except ImportError as error:
        remedy = "install torch, or give SAMPLES"
        raise InputError("--measure", None, "needs the package torch", remedy) from error
    tp = setting.tp
    shape = replace(setting.shape, heads=setting.shape.heads // tp, kv_heads=setting.kv_heads)
    try:
        return measure_attention(shape, lengths)
    except InputError as error:
        raise InputError("--measure", error.value, error.problem, error.remedy) from error
    except (RuntimeError, MemoryError) as error:
        problem = "attention failed: " + str(error).split("\n", 1)[0][:120]
        raise InputError("--measure", max(lengths), problem, "give shorter lengths") from error


def device() -> str:
    """Where it was measured."""
    import torch

    return "a GPU, in bf16" if torch.cuda.is_available() else "the CPU, in fp32"
