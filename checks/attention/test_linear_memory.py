"""No kernel holds the scores of all rows at once, and its blocks add up to the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from checks.attention.test_kernels import check_against_the_oracle, random_inputs
from ringproof.reference.attention import kernels
from ringproof.reference.attention.kernels import AttentionKernel, FlashKernel, ReferenceKernel
from ringproof.reference.attention.masks import MaskedKernel, RowMask

ROWS, HEADS = 1024, 4


class Largest(TorchDispatchMode):
    """The elements of the largest tensor that an operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def one_sequence(rows: int) -> RowMask:
    numbers = torch.zeros(rows, dtype=torch.int64), torch.arange(rows)
    return RowMask(numbers, numbers, causal=True)


def kernel_of(name: str, rows: int) -> tuple[AttentionKernel | MaskedKernel, bool]:
    """A kernel for the causal mask, and whether the call has to ask for that mask."""
    if name == "reference":
        return ReferenceKernel(), True
    inner = ReferenceKernel() if name == "masked-reference" else FlashKernel()
    return MaskedKernel(one_sequence(rows), inner), False


KERNELS = ("reference", "masked-reference", "masked-sdpa")


@pytest.mark.parametrize("name", KERNELS)
def test_no_tensor_grows_with_the_square_of_the_rows(name: str) -> None:
    q, k, v, grad = random_inputs(*((1, ROWS, HEADS, 8),) * 4)
    kernel, causal = kernel_of(name, ROWS)
    with Largest() as largest:
        out, lse = kernel.forward(q, k, v, causal=causal, scale=1.0)
        kernel.backward(grad, (q, k, v), out, lse, causal=causal, scale=1.0)
    assert largest.elements <= kernels.SCORES < HEADS * ROWS * ROWS / 2


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("scores", [1, 3000])
def test_blocks_of_rows_are_exact(name: str, scores: int) -> None:
    """Blocks that divide the rows and that do not, grouped queries."""
    shapes = ((1, 70, 4, 8), (1, 70, 2, 8), (1, 70, 2, 12), (1, 70, 4, 12))
    kernel, causal = kernel_of(name, 70)
    with patch.object(kernels, "SCORES", scores):
        inputs = random_inputs(*shapes)
        check_against_the_oracle(kernel, inputs, causal=causal, scale=0.5, masked=not causal)
