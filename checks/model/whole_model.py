"""A model on one rank, and what a step makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ringproof.reference.model.batch import PackedBatch
from ringproof.reference.model.config import ModelConfig, preset
from ringproof.reference.model.stage import Stage
from ringproof.reference.model.tensor_parallel import TensorParallel


def whole(config: ModelConfig, **options: Any) -> Stage:
    """The model on one rank; options as of ``Stage``."""
    settings: dict[str, Any] = {
        "layers": range(len(config.layers)),
        "first": True,
        "last": True,
        "seed": 0,
        "dtype": torch.float64,
        "device": torch.device("cpu"),
        "tensor_parallel": TensorParallel(),
    }
    return Stage(config, **{**settings, **options})


def gradients(stage: Stage) -> dict[str, torch.Tensor]:
    assert all(parameter.grad is not None for parameter in stage.parameters())
    return {name: parameter.grad for name, parameter in stage.named_parameters()}


def rows(count: int, *, seed: int = 0) -> torch.Tensor:
    """Random rows of the residual stream of a preset; all of them have one width."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        count, preset("moonlight-tiny").hidden, generator=generator, dtype=torch.float64
    )


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Largest absolute difference; NaN is infinite, since ``max`` passes over it."""
    return (ours - theirs).abs().max().detach().nan_to_num(nan=torch.inf)


def worst(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest difference of a gradient, over the largest entry of that gradient."""
    assert found.keys() == expected.keys()
    assert all(gradient.any() for gradient in expected.values())
    return max(
        float((found[name] - expected[name]).abs().max() / expected[name].abs().max())
        for name in found
    )


def run(stage: Stage, batch: PackedBatch) -> tuple[float, dict[str, torch.Tensor]]:
    stage.zero_grad()
    assert batch.tokens is not None
    output = stage(batch.tokens, batch)
    output.value.backward()
    loss = float(output.value.detach())
    assert loss == pytest.approx(float(sum(output.losses.values())), rel=1e-14)
    return loss, gradients(stage)
