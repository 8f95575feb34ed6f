"""The chunked state-space scan against the recurrence, row by row, in float64."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from checks.model.mamba_oracle import NAN, random_segments, recur, runs
from ringproof.reference.model.state_space import state_space_scan
from ringproof.reference.packing.capacity import PADDING

Inputs = tuple[torch.Tensor, ...]


def draw(
    seed: int, rows: int, *, heads: int = 6, groups: int = 2, width: int = 3, state: int = 5
) -> Inputs:
    """x, step, rate, b and c; rows forget anything from almost nothing to everything."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    step, rate = normal(rows, heads).exp(), -(2 * normal(heads) - 2).exp()
    return (
        normal(rows, heads, width),
        step,
        rate,
        normal(rows, groups, state),
        normal(rows, groups, state),
    )


def by_sequence(inputs: Inputs, segments: torch.Tensor) -> torch.Tensor:
    """The oracle: each sequence by itself, zero elsewhere."""
    x, step, rate, b, c = inputs
    y = torch.zeros_like(x)
    for span in runs(segments):
        rows = span.index
        y[rows] = recur(x[rows], step[rows], rate, b[rows], c[rows])
    return y


def gradients(y: torch.Tensor, inputs: Inputs) -> Inputs:
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(9), dtype=y.dtype)
    return torch.autograd.grad((y * weights).sum(), inputs)


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
@pytest.mark.parametrize(("seed", "rows"), [(0, 1), (1, 16), (2, 50), (3, 111), (4, 130)])
def test_chunks_are_exact(seed: int, rows: int, chunk: int) -> None:
    segments = random_segments(seed, rows)
    inputs = tuple(t.requires_grad_() for t in draw(seed, rows))
    y, expected = state_space_scan(*inputs, segments, chunk=chunk), by_sequence(inputs, segments)
    assert torch.allclose(y, expected, rtol=1e-12, atol=1e-12)
    if runs(segments):
        found, wanted = gradients(y, inputs), gradients(expected, inputs)
        for name, ours, theirs in zip(["x", "step", "rate", "b", "c"], found, wanted, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-11, atol=1e-11), name


@pytest.mark.parametrize("lengths", [(130,), (64, 66), (1,) * 130, (65, 1, 64)])
def test_borders_at_and_off_the_chunks(lengths: tuple[int, ...]) -> None:
    """A sequence over several chunks, borders on chunk borders, a border after each row."""
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    inputs = draw(5, 130)
    found = state_space_scan(*inputs, numbers, chunk=16)
    assert torch.allclose(found, by_sequence(inputs, numbers), rtol=1e-12, atol=1e-12)


def test_the_proof_notices_a_state_that_is_not_reset() -> None:
    """Negative control: the same rows as one sequence are another result."""
    inputs, segments = draw(6, 100), torch.arange(100) // 23
    whole = state_space_scan(*inputs, torch.zeros_like(segments), chunk=16)
    assert (whole - by_sequence(inputs, segments)).abs().max() > 1e-2


def test_padding_may_hold_anything_and_gets_nothing() -> None:
    segments = random_segments(7, 90)
    padding = segments == PADDING
    assert padding.any()
    x, step, rate, b, c = draw(7, 90)
    expected = state_space_scan(x, step, rate, b, c, segments, chunk=16)
    for tensor in (x, step, b, c):
        tensor[padding] = NAN
    inputs = tuple(t.requires_grad_() for t in (x, step, rate, b, c))
    y = state_space_scan(*inputs, segments, chunk=16)
    assert torch.equal(y, expected)
    assert y[padding].eq(0).all()
    for name, gradient in zip(["x", "step", "rate", "b", "c"], gradients(y, inputs), strict=True):
        assert gradient.isfinite().all(), name
        assert name == "rate" or gradient[padding].eq(0).all(), name


def test_gradients_are_those_of_differences() -> None:
    inputs = tuple(t.requires_grad_() for t in draw(8, 11, heads=2, groups=1, width=2, state=2))
    segments = torch.tensor([0, 0, 0, PADDING, 1, 1, 1, 1, 1, 1, PADDING])
    assert torch.autograd.gradcheck(lambda *t: state_space_scan(*t, segments, chunk=4), inputs)


def test_states_that_vanish_at_once_stay_finite() -> None:
    """The exponent between a row and a later one is huge; it must never be taken."""
    x, step, rate, b, c = draw(10, 40)
    inputs = tuple(t.requires_grad_() for t in (x, step, rate * 1e4, b, c))
    y = state_space_scan(*inputs, torch.zeros(40, dtype=torch.int64), chunk=16)
    assert all(t.isfinite().all() for t in (y, *gradients(y, inputs)))


def test_bfloat16_is_computed_in_float32() -> None:
    segments = random_segments(11, 80)
    inputs = draw(11, 80)
    rounded = tuple(t.bfloat16() for t in inputs)
    y = state_space_scan(*rounded, segments)
    assert y.dtype == torch.bfloat16
    expected = by_sequence(tuple(t.double() for t in rounded), segments)
    assert torch.allclose(y.double(), expected, rtol=2**-8, atol=1e-4)


def test_nothing_depends_on_where_the_borders_are() -> None:
    """Tensors without data pass through: no shape, branch or copy to the host needs any."""
    with FakeTensorMode():
        x, step, rate, b, c = (
            torch.empty(shape, requires_grad=True)
            for shape in ((90, 6, 3), (90, 6), (6,), (90, 2, 5), (90, 2, 5))
        )
        y = state_space_scan(x, step, rate, b, c, torch.empty(90, dtype=torch.int64), chunk=16)
        y.sum().backward()
        assert y.shape == (90, 6, 3)


def test_work_grows_with_the_rows() -> None:
    """Twice the rows, twice the products: what a long pack costs is no square of it."""
    counts = []
    for rows in (1024, 2048, 4096):
        with FakeTensorMode(), FlopCounterMode(display=False) as counter:
            inputs = (torch.empty(rows, 6, 3), torch.empty(rows, 6), torch.empty(6))
            state = torch.empty(rows, 2, 5)
            state_space_scan(*inputs, state, state, torch.empty(rows, dtype=torch.int64))
        counts.append(counter.get_total_flops())
    assert counts[0] > 0
    assert counts == [counts[0], 2 * counts[0], 4 * counts[0]]
