"""AdamW and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ringproof.reference.training.gradients import TrainedParameter

BETAS = (0.9, 0.95)
EPSILON = 1e-8
FINAL_SHARE = 0.1
"""Of the highest learning rate, at the end of the cosine."""


def make_optimiser(
    parameters: Sequence[TrainedParameter], *, weight_decay: float
) -> torch.optim.AdamW:
    """Create AdamW for a rank's parameters. The learning rate is set before each step.

    Args:
        parameters: Parameters in an order that is the same in each start of the run.
        weight_decay: Weight decay of matrices. Vectors (norms, biases, Mamba's ``A`` and ``D``)
            have none.
    """
    matrices = [p.parameter for p in parameters if p.parameter.dim() > 1]
    vectors = [p.parameter for p in parameters if p.parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=EPSILON)


def learning_rate(step: int, *, steps: int, highest: float, warmup_steps: int) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine decay to a tenth.

    Args:
        step: Step, from 0.
        steps: Steps of the whole run.
        highest: Highest learning rate, reached in step ``warmup_steps - 1``.
        warmup_steps: Steps of the warm-up; with 0 the run starts at the highest rate.

    >>> [round(learning_rate(s, steps=6, highest=1.0, warmup_steps=2), 3) for s in range(7)]
    [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]
    """
    if step < warmup_steps:
        return highest * (step + 1) / warmup_steps
    past = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    return highest * (FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * past)) / 2)


def set_learning_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate for the following steps."""
    for group in optimiser.param_groups:
        group["lr"] = value
