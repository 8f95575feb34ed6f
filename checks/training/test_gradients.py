"""Optimiser, learning rate, clipping, on one rank; sums over many are in ``smoke``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ringproof.reference.model.parameters import ParameterKind
from ringproof.reference.topology.dynamic import ContextParallelGroup
from ringproof.reference.training.gradients import (
    ReductionGroups,
    TrainedParameter,
    clip_gradients,
    gradient_norm,
    learning_rate,
    make_optimiser,
    reduce_gradients,
    set_learning_rate,
)
from ringproof.reference.training.options import OptimiserOptions


@pytest.fixture
def groups(alone: ContextParallelGroup) -> ReductionGroups:
    return ReductionGroups(alone.flat, alone.flat, alone.flat, None)


def parameters() -> tuple[TrainedParameter, ...]:
    shapes = {"matrix": (3, 4), "vector": (4,), "unused": (2, 2)}
    torch.manual_seed(0)
    made = tuple(
        TrainedParameter(
            name, ParameterKind(), nn.Parameter(torch.randn(shape, dtype=torch.float64))
        )
        for name, shape in shapes.items()
    )
    for p in made[:2]:
        p.parameter.grad = torch.randn_like(p.parameter)
    return made


def test_norm_and_clip_are_torchs(groups: ReductionGroups) -> None:
    made = parameters()
    plain = [p.parameter.detach().clone().requires_grad_() for p in made[:2]]
    for tensor, p in zip(plain, made, strict=False):
        tensor.grad = p.gradient.clone()
    reduce_gradients(made, groups)
    norm = gradient_norm(made, groups)
    expected = nn.utils.clip_grad_norm_(plain, 0.5)
    clip_gradients(made, norm, 0.5)
    assert norm.dtype == torch.float64
    assert torch.allclose(norm, expected, rtol=1e-14)
    for tensor, p in zip(plain, made, strict=False):
        assert torch.allclose(p.gradient, tensor.grad, rtol=1e-14)


def test_unused_parameters_have_a_gradient_of_zeros(groups: ReductionGroups) -> None:
    made = parameters()
    reduce_gradients(made, groups)
    assert torch.equal(made[2].gradient, torch.zeros(2, 2, dtype=torch.float64))


def test_a_limit_of_zero_or_beyond_the_norm_changes_nothing(groups: ReductionGroups) -> None:
    made = parameters()
    before = [p.gradient.clone() for p in made]
    for limit in (0, 1e6):
        clip_gradients(made, gradient_norm(made, groups), limit)
    assert all(torch.equal(p.gradient, old) for p, old in zip(made, before, strict=True))


def test_only_matrices_decay() -> None:
    made = parameters()
    before = [p.parameter.detach().clone() for p in made]
    optimiser = make_optimiser(made, weight_decay=0.5)
    set_learning_rate(optimiser, 0.1)
    for p in made:
        p.parameter.grad = torch.zeros_like(p.parameter)
    optimiser.step()
    assert torch.allclose(made[0].parameter, before[0] * 0.95, rtol=1e-14)
    assert torch.equal(made[1].parameter, before[1])


def test_learning_rate_rises_then_falls() -> None:
    rates = [learning_rate(step, OptimiserOptions()) for step in range(60)]
    assert rates[:5] == sorted(rates[:5])
    assert max(rates) == rates[4] == rates[5] == 3e-3
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert min(rates[5:]) == pytest.approx(3e-4)
    alone = OptimiserOptions(steps=1, learning_rate=1.0, warmup_steps=0)
    assert learning_rate(0, alone) == 1.0
