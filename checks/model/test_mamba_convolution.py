"""The causal convolution against ``torch.nn.functional.conv1d`` on each sequence by itself."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import conv1d, pad

from checks.model.mamba_oracle import NAN, random_segments, runs
from ringproof.reference.model.state_space import causal_convolution
from ringproof.reference.packing.capacity import PADDING

CHANNELS = 5


def draw(seed: int, rows: int, taps: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, CHANNELS), (CHANNELS, taps), (CHANNELS,))
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    )


def by_sequence(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, segments: torch.Tensor
) -> torch.Tensor:
    y = torch.zeros_like(x)
    for span in runs(segments):
        before = pad(x[span.index].T, (weight.shape[1] - 1, 0))
        y[span.index] = conv1d(before, weight[:, None], bias, groups=CHANNELS).T
    return y


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize(("seed", "rows"), [(0, 1), (1, 2), (2, 3), (3, 40), (4, 77)])
def test_each_sequence_starts_afresh(seed: int, rows: int, taps: int) -> None:
    inputs, segments = draw(seed, rows, taps), random_segments(seed, rows)
    y, expected = causal_convolution(*inputs, segments), by_sequence(*inputs, segments)
    assert torch.allclose(y, expected, rtol=1e-13, atol=1e-13)
    if runs(segments):
        weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
        found, wanted = (torch.autograd.grad((t * weights).sum(), inputs) for t in (y, expected))
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_proof_notices_a_tap_that_crosses_a_border() -> None:
    """Negative control: the same rows as one sequence are another result."""
    inputs, segments = draw(5, 40, 4), torch.arange(40) // 7
    crossing = causal_convolution(*inputs, torch.zeros_like(segments))
    assert (crossing - by_sequence(*inputs, segments)).abs().max() > 1e-2


def test_padding_may_hold_anything_and_gets_nothing() -> None:
    segments = random_segments(6, 60)
    padding = segments == PADDING
    assert padding.any()
    x, weight, bias = draw(6, 60, 4)
    expected = causal_convolution(x, weight, bias, segments)
    dirty = torch.where(padding[:, None], NAN, x.detach()).requires_grad_()
    y = causal_convolution(dirty, weight, bias, segments)
    assert torch.equal(y, expected)
    assert y[padding].eq(0).all()
    of_x, *others = torch.autograd.grad(y.square().sum(), (dirty, weight, bias))
    assert of_x[padding].eq(0).all()
    assert all(gradient.isfinite().all() for gradient in (of_x, *others))


def test_gradients_are_those_of_differences() -> None:
    segments = torch.tensor([0, 0, 0, 0, 0, 0, PADDING, 1, 2, 2])
    inputs = draw(7, len(segments), 4)
    assert torch.autograd.gradcheck(lambda *t: causal_convolution(*t, segments), inputs)
