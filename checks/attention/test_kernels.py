"""Each kernel and the merge, in one process, against the dense oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ringproof.errors import InputError
from ringproof.reference.attention import kernels
from ringproof.reference.attention.dense import dense_attention
from ringproof.reference.attention.kernels import (
    AttentionKernel,
    FlashKernel,
    ReferenceKernel,
    choose_kernel,
)
from ringproof.reference.attention.masks import MaskedKernel, RowMask
from ringproof.reference.attention.merge import PartialSum
from ringproof.reference.attention.names import KERNEL_NAMES

# float64, sums of at most a few hundred terms of order one: rounding stays near 1e-13.
TOLERANCE = 1e-10


def random_inputs(
    *shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    ]


def check_against_the_oracle(
    kernel: AttentionKernel | MaskedKernel,
    inputs: Sequence[torch.Tensor],
    *,
    causal: bool,
    scale: float,
    masked: bool = False,
) -> None:
    """Output, LSE and gradients; ``masked`` kernels are causal by themselves."""
    q, k, v, grad = inputs
    out, lse = kernel.forward(q, k, v, causal=causal, scale=scale)
    gradients = kernel.backward(grad, (q, k, v), out, lse, causal=causal, scale=scale)
    dense = dense_attention(q, k, v, grad, causal=causal or masked, scale=scale)
    expected = (dense.out, dense.lse, dense.dq, dense.dk, dense.dv)
    for found, right in zip((out, lse, *gradients), expected, strict=True):
        assert found.shape == right.shape
        assert (found - right).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", KERNEL_NAMES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "shape",
    [(1, 4, 4, 16, 16), (2, 8, 2, 16, 24), (2, 6, 1, 24, 8), (3, 2, 2, 8, 8)],
    ids=["mha", "gqa-wider-v", "mqa-narrower-v", "batch"],
)
def test_kernel_equals_the_oracle(
    name: str, causal: bool, shape: tuple[int, int, int, int, int]
) -> None:
    batch, heads, kv_heads, width, v_width = shape
    rows = 33
    inputs = random_inputs(
        (batch, rows, heads, width),
        (batch, rows, kv_heads, width),
        (batch, rows, kv_heads, v_width),
        (batch, rows, heads, v_width),
    )
    kernel = choose_kernel(name, inputs[0], inputs[2])
    check_against_the_oracle(kernel, inputs, causal=causal, scale=width**-0.5)


@pytest.mark.parametrize("name", KERNEL_NAMES)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_rows_need_not_be_contiguous(name: str, kv_heads: int) -> None:
    """ATen's CPU operator reads past such rows: they must not reach it."""
    q, k, v, grad = random_inputs(
        (1, 8, 4, 33), (1, 33, kv_heads, 8), (1, 33, kv_heads, 8), (1, 8, 4, 33)
    )
    strided_q, strided_grad = q.permute(0, 3, 2, 1), grad.permute(0, 3, 2, 1)
    assert strided_q.stride(-1) != 1
    kernel = choose_kernel(name, strided_q, v)
    check_against_the_oracle(kernel, (strided_q, k, v, strided_grad), causal=True, scale=0.5)


def test_the_choice_of_a_kernel_falls_back_or_refuses_by_name() -> None:
    q = torch.empty(1, 4, 2, 8, device="meta")  # stands for any device without flash for float32
    assert choose_kernel("auto", q, q).name == "reference"
    assert choose_kernel("auto", q.half(), q.half()).name == "sdpa"
    assert choose_kernel("auto", torch.empty(1, 4, 2, 8), torch.empty(1, 4, 2, 8)).name == "sdpa"
    with pytest.raises(InputError, match="kernel: flash attention on meta takes 16-bit floats"):
        choose_kernel("sdpa", q, q)
    wide = torch.empty(1, 4, 2, 300, device="meta", dtype=torch.bfloat16)
    with pytest.raises(InputError, match="width up to 256, not 304"):
        choose_kernel("sdpa", wide, wide)


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_partials_over_disjoint_keys_merge_into_the_whole(name: str) -> None:
    q, k, v, grad = random_inputs((1, 12, 4, 8), (1, 30, 2, 8), (1, 30, 2, 8), (1, 12, 4, 8))
    kernel, scale = choose_kernel(name, q, v), 8**-0.5
    whole, whole_lse = kernel.forward(q, k, v, causal=False, scale=scale)
    total = PartialSum((1, 12, 4, 8), like=q)
    for keys in (slice(0, 7), slice(7, 8), slice(8, 30)):
        total.add(
            slice(0, 12), *kernel.forward(q, k[:, keys], v[:, keys], causal=False, scale=scale)
        )
    assert (total.out - whole).abs().max() <= TOLERANCE
    assert (total.lse - whole_lse).abs().max() <= TOLERANCE
    right = kernel.backward(grad, (q, k, v), whole, whole_lse, causal=False, scale=scale)
    dq = torch.zeros_like(q)
    for keys in (slice(0, 7), slice(7, 8), slice(8, 30)):
        inputs = (q, k[:, keys], v[:, keys])
        parts = kernel.backward(grad, inputs, total.out, total.lse, causal=False, scale=scale)
        dq += parts[0]
        assert (parts[1] - right[1][:, keys]).abs().max() <= TOLERANCE
        assert (parts[2] - right[2][:, keys]).abs().max() <= TOLERANCE
    assert (dq - right[0]).abs().max() <= TOLERANCE


def test_a_zero_lse_is_seen() -> None:
    """Negative control: a kernel that fakes its LSE must not pass the merge."""
    q, k, v = random_inputs((1, 12, 4, 8), (1, 30, 4, 8), (1, 30, 4, 8))
    kernel = choose_kernel("sdpa", q, v)
    whole, _ = kernel.forward(q, k, v, causal=False, scale=1.0)
    total = PartialSum((1, 12, 4, 8), like=q)
    for keys in (slice(0, 15), slice(15, 30)):
        out, lse = kernel.forward(q, k[:, keys], v[:, keys], causal=False, scale=1.0)
        total.add(slice(0, 12), out, torch.zeros_like(lse))
    assert (total.out - whole).abs().max() > 1e-3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=6))
def test_merge_is_stable_and_order_free(lses: list[float]) -> None:
    def merged(order: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        total = PartialSum((1, 1, 1, 1), like=torch.zeros(1, dtype=torch.float64))
        for lse in order:
            out = torch.full((1, 1, 1, 1), lse / 1e4, dtype=torch.float64)
            total.add(slice(0, 1), out, torch.full((1, 1, 1), lse, dtype=torch.float64))
        return total.out, total.lse

    (out, lse), (out_back, lse_back) = merged(lses), merged(lses[::-1])
    values = torch.tensor(lses, dtype=torch.float64)
    assert torch.isfinite(out).all()
    assert torch.allclose(out, (torch.softmax(values, 0) * values / 1e4).sum(), atol=1e-9)
    assert torch.allclose(out, out_back, atol=1e-9)
    assert torch.allclose(lse, lse_back, atol=1e-9)


def test_rows_without_keys_stay_zero_and_nan_is_not_hidden() -> None:
    total = PartialSum((1, 2, 1, 1), like=torch.zeros(1, dtype=torch.float64))
    nothing = torch.full((1, 2, 1), -torch.inf, dtype=torch.float64)
    total.add(slice(0, 2), torch.zeros(1, 2, 1, 1, dtype=torch.float64), nothing)
    assert total.out.eq(0).all()
    assert total.lse.eq(-torch.inf).all()
    total.add(slice(1, 2), torch.full((1, 1, 1, 1), torch.nan), torch.zeros(1, 1, 1))
    assert total.out[0, 1].isnan().all()
    assert total.out[0, 0].eq(0).all()


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="banana"):
        choose_kernel("banana", torch.ones(1), torch.ones(1))


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
