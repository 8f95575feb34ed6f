"""What kernels over packed sequences return at full size, against the same that compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ringproof.rehearsal.hollow.shapes import KERNELS
from ringproof.rehearsal.standins import kernels, packed

HEADS, CHANNELS = 3, 8
BOUNDS = torch.tensor([0, 4, 12, 16], dtype=torch.int32)
ROWS, HALF = 16, 8
ROPE = (torch.rand(ROWS, 1, 1, CHANNELS), None, SimpleNamespace(name="NVTE_THD"), False, BOUNDS)


def rows(*size: int) -> torch.Tensor:
    return torch.rand(size, dtype=torch.bfloat16)


def lse(*size: int) -> torch.Tensor:
    return torch.rand(size, dtype=torch.float32)


CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "fused_rope_forward": lambda: (rows(ROWS, HEADS, CHANNELS), *ROPE, 1, 0),
    "fused_rope_backward": lambda: (rows(ROWS, HEADS, CHANNELS), *ROPE, 1, 0),
    "thd_read_half_tensor": lambda: (rows(2, ROWS, HEADS, CHANNELS), BOUNDS, 1),
    "thd_read_second_half_lse": lambda: (lse(HEADS, ROWS), BOUNDS, True, HALF),
    "thd_second_half_lse_correction": lambda: (lse(HEADS, ROWS), lse(HEADS, HALF), BOUNDS, True),
    "thd_out_correction": lambda: (
        rows(ROWS, HEADS, CHANNELS), rows(HALF, HEADS, CHANNELS), lse(HEADS, ROWS),
        lse(HEADS, HALF), BOUNDS, True, True,
    ),
    "thd_grad_correction": lambda: (
        rows(ROWS, HEADS, CHANNELS), rows(ROWS, HEADS, CHANNELS), BOUNDS, "add", "copy",
    ),
}  # fmt: skip


def computing(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(packed, name, None) or getattr(kernels, name)
    return found


@pytest.mark.parametrize("name", CALLS)
def test_they_return_what_those_that_compute_do(name: str) -> None:
    computed, made = (run(*CALLS[name]()) for run in (computing(name), KERNELS[name]))
    if computed is None:
        assert made is None
        return
    assert (made.shape, made.dtype, made.stride()) == (
        computed.shape, computed.dtype, computed.stride()
    )  # fmt: skip


def test_an_lse_that_is_not_packed_keeps_its_sequences() -> None:
    given = lse(3, HEADS, 8), BOUNDS, False, 4
    computed, made = (
        run(*given)
        for run in (packed.thd_read_second_half_lse, KERNELS["thd_read_second_half_lse"])
    )
    assert made.shape == computed.shape == (3, HEADS, 4)


def test_their_time_does_not_grow_with_the_sequences() -> None:
    """A pack with CUDA graphs has as many entries as `--thd-max-packed-sequences` says."""
    many = torch.arange(0, 2 * 4097, 2, dtype=torch.int32)
    given = rows(8192, HEADS, CHANNELS), many, 1
    began = time.process_time()
    packed.thd_read_half_tensor(*given)
    computed = time.process_time() - began
    for _ in range(10):
        KERNELS["thd_read_half_tensor"](*given)
    assert time.process_time() - began - computed < computed
