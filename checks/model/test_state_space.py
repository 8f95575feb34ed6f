"""The causal convolution and the chunked scan, against each sequence by itself, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import conv1d, pad
from torch.utils.flop_counter import FlopCounterMode

from checks.model.mamba_oracle import NAN, random_segments, recur, runs
from ringproof.reference.model.state_space import causal_convolution, state_space_scan
from ringproof.reference.packing.capacity import PADDING

CHANNELS = 5
Inputs = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor]


def normal(seed: int, *shapes: tuple[int, ...]) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)


def draw_convolution(seed: int, rows: int, taps: int = 4) -> Inputs:
    """x, weight and bias."""
    return normal(seed, (rows, CHANNELS), (CHANNELS, taps), (CHANNELS,))


def draw_scan(seed: int, rows: int) -> Inputs:
    """x, step, rate, b and c; rows forget anything from almost nothing to everything."""
    step, rate, x, b, c = normal(seed, (rows, 6), (6,), (rows, 6, 3), (rows, 2, 5), (rows, 2, 5))
    return x, step.exp(), -(2 * rate - 2).exp(), b, c


def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """One sequence, by torch's own convolution."""
    return conv1d(pad(x.T, (weight.shape[1] - 1, 0)), weight[:, None], bias, groups=CHANNELS).T


@dataclass(frozen=True)
class Operator:
    """An operator on packed rows.

    Args:
        packed: The operator; its last argument says which sequence each row is of.
        alone: The same for one sequence.
        draw: Makes inputs from a seed and a number of rows.
        by_row: Places of the inputs that have a row for each token.
    """

    packed: Function
    alone: Function
    draw: Callable[[int, int], Inputs]
    by_row: tuple[int, ...]

    def by_sequence(self, inputs: Inputs, segments: torch.Tensor) -> torch.Tensor:
        """The oracle: each sequence by itself, zero elsewhere."""
        y = torch.zeros_like(inputs[0])
        for span in runs(segments):
            own = (t[span.index] if i in self.by_row else t for i, t in enumerate(inputs))
            y[span.index] = self.alone(*own)
        return y


def convolution(taps: int) -> Operator:
    return Operator(causal_convolution, convolve, partial(draw_convolution, taps=taps), (0,))


def scan(chunk: int) -> Operator:
    return Operator(partial(state_space_scan, chunk=chunk), recur, draw_scan, (0, 1, 3, 4))


SCAN = scan(16)
BOTH = pytest.mark.parametrize("operator", [convolution(4), SCAN], ids=["convolution", "scan"])


def gradients(y: torch.Tensor, inputs: Inputs) -> Inputs:
    (weights,) = normal(9, tuple(y.shape))
    return torch.autograd.grad((y * weights).sum(), inputs)


@pytest.mark.parametrize(
    "operator",
    [
        *(pytest.param(convolution(taps), id=f"{taps} taps") for taps in (1, 2, 4)),
        *(pytest.param(scan(chunk), id=f"chunks of {chunk}") for chunk in (1, 7, 16, 64)),
    ],
)
@pytest.mark.parametrize(
    ("seed", "rows"), [(0, 1), (1, 2), (1, 16), (2, 3), (2, 50), (3, 111), (4, 130)]
)
def test_each_sequence_is_computed_by_itself(operator: Operator, seed: int, rows: int) -> None:
    segments = random_segments(seed, rows)
    inputs = tuple(t.requires_grad_() for t in operator.draw(seed, rows))
    y, expected = operator.packed(*inputs, segments), operator.by_sequence(inputs, segments)
    assert torch.allclose(y, expected, rtol=1e-12, atol=1e-12)
    if runs(segments):
        pairs = zip(gradients(y, inputs), gradients(expected, inputs), strict=True)
        for place, (ours, theirs) in enumerate(pairs):
            assert torch.allclose(ours, theirs, rtol=1e-11, atol=1e-11), place


@BOTH
def test_padding_may_hold_anything_and_gets_nothing(operator: Operator) -> None:
    segments = random_segments(7, 90)
    padding = segments == PADDING
    assert padding.any()
    inputs = operator.draw(7, 90)
    expected = operator.packed(*inputs, segments)
    for place in operator.by_row:
        inputs[place][padding] = NAN
    y = operator.packed(*(t.requires_grad_() for t in inputs), segments)
    assert torch.equal(y, expected)
    assert y[padding].eq(0).all()
    for place, gradient in enumerate(gradients(y, inputs)):
        assert gradient.isfinite().all(), place
        assert place not in operator.by_row or gradient[padding].eq(0).all(), place


@pytest.mark.parametrize("lengths", [(130,), (64, 66), (1,) * 130, (65, 1, 64)])
def test_borders_at_and_off_the_chunks(lengths: tuple[int, ...]) -> None:
    """A sequence over several chunks, borders on chunk borders, a border after each row."""
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    inputs = draw_scan(5, 130)
    found = SCAN.packed(*inputs, numbers)
    assert torch.allclose(found, SCAN.by_sequence(inputs, numbers), rtol=1e-12, atol=1e-12)


def test_states_that_vanish_at_once_stay_finite() -> None:
    """The exponent between a row and a later one is huge; it must never be taken."""
    x, step, rate, b, c = draw_scan(10, 40)
    inputs = tuple(t.requires_grad_() for t in (x, step, rate * 1e4, b, c))
    y = SCAN.packed(*inputs, torch.zeros(40, dtype=torch.int64))
    assert all(t.isfinite().all() for t in (y, *gradients(y, inputs)))


def test_bfloat16_is_computed_in_float32() -> None:
    segments = random_segments(11, 80)
    rounded = tuple(t.bfloat16() for t in draw_scan(11, 80))
    y = state_space_scan(*rounded, segments)
    assert y.dtype == torch.bfloat16
    expected = SCAN.by_sequence(tuple(t.double() for t in rounded), segments)
    assert torch.allclose(y.double(), expected, rtol=2**-8, atol=1e-4)


@pytest.mark.slow
def test_work_grows_with_the_rows_and_needs_no_data() -> None:
    """Twice the rows, twice the products. On tensors without data, which no branch can read."""
    counts = []
    for rows in (1024, 2048, 4096):
        with FakeTensorMode(), FlopCounterMode(display=False) as counter:
            shapes = ((rows, 6, 3), (rows, 6), (6,), (rows, 2, 5), (rows, 2, 5))
            inputs = (torch.empty(shape, requires_grad=True) for shape in shapes)
            y = state_space_scan(*inputs, torch.empty(rows, dtype=torch.int64))
            y.sum().backward()
        assert y.shape == (rows, 6, 3)
        counts.append(counter.get_total_flops())
    assert counts[0] > 0
    assert counts == [counts[0], 2 * counts[0], 4 * counts[0]]
