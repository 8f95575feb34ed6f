"""RoPE against products of complex numbers, and what it is for: only distances matter."""

from __future__ import annotations

import pytest
import torch

from checks.model.dense import turn
from ringproof.reference.model.attention import rotate, rotation

ROWS, HEADS, WIDTH, BASE = 11, 3, 8, 1e4


def heads(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return rotate(x, *rotation(positions, x.shape[-1], BASE, x.dtype))


def test_equals_complex_numbers() -> None:
    x = heads(ROWS, HEADS, WIDTH)
    expected = turn(x.transpose(0, 1), BASE).transpose(0, 1)
    torch.testing.assert_close(rotated(x, torch.arange(ROWS)), expected, rtol=0, atol=1e-14)


def test_rows_in_any_order_are_turned_by_their_own_positions() -> None:
    """A zigzag shard is the whole's rows, turned; counting from its first row would not be."""
    x, rows = heads(16, HEADS, WIDTH), torch.tensor([2, 3, 12, 13])
    expected = rotated(x, torch.arange(16))[rows]
    assert torch.equal(rotated(x[rows], rows), expected)
    assert not torch.allclose(rotated(x[rows], torch.arange(4)), expected, atol=1e-2)


@pytest.mark.parametrize("offset", [1, 1000])
def test_scores_depend_on_distance(offset: int) -> None:
    """A sequence can begin anywhere; distances inside of it may not change."""
    q, k, positions = heads(ROWS, HEADS, WIDTH), heads(ROWS, HEADS, WIDTH, seed=1), torch.arange(11)

    def scores(places: torch.Tensor) -> torch.Tensor:
        return torch.einsum("qhd,khd->hqk", rotated(q, places), rotated(k, places))

    torch.testing.assert_close(scores(positions + offset), scores(positions), rtol=0, atol=1e-11)
    assert not torch.allclose(scores(positions * 2), scores(positions), atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_angles_are_never_computed_in_half_precision(dtype: torch.dtype) -> None:
    positions = torch.tensor([100_003])
    cosine, sine = rotation(positions, WIDTH, BASE, dtype)
    exact, _ = rotation(positions, WIDTH, BASE, torch.float64)
    assert cosine.dtype == sine.dtype == torch.float32
    torch.testing.assert_close(cosine.double(), exact, rtol=0, atol=0.01)
    assert rotated(heads(1, 1, WIDTH).to(dtype), positions).dtype == dtype
