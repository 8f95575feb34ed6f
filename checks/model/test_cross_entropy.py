"""Cross-entropy sums against torch's own; over TP they are tested with the model, in ``smoke``."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from ringproof.reference.model.batch import IGNORED
from ringproof.reference.model.tensor_parallel import TensorParallel
from ringproof.reference.model.vocabulary import cross_entropy_sum

ONE = TensorParallel()
LABELS = torch.tensor([3, IGNORED, 0, 9, IGNORED, 9])


def logits(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(6, 10, dtype=torch.float64, generator=generator) * scale
    return drawn.to(dtype).requires_grad_()


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_equals_torch(scale: float) -> None:
    found, expected = logits(scale=scale), logits(scale=scale)
    loss = cross_entropy_sum(found, LABELS, ONE)
    reference = cross_entropy(expected, LABELS, ignore_index=IGNORED, reduction="sum")
    (loss * 0.3).backward()
    (reference * 0.3).backward()
    torch.testing.assert_close(loss, reference, rtol=1e-13, atol=0)
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-12, atol=1e-15)


def test_rows_without_a_label_count_nothing() -> None:
    found = logits()
    loss = cross_entropy_sum(found, torch.full((6,), IGNORED), ONE)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert found.grad is not None
    assert not found.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_sums_in_float32(dtype: torch.dtype) -> None:
    found = logits(dtype)
    loss = cross_entropy_sum(found, LABELS, ONE)
    loss.backward()
    reference = cross_entropy(found.detach().double(), LABELS, reduction="sum")
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(reference), rel=1e-6)
    assert found.grad is not None
    assert found.grad.dtype == dtype
