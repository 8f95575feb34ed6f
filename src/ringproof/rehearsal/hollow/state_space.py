"""The scan and the convolution of Mamba, which keep for the backward pass what their kernels keep.

Nothing is computed. What the kernels allocate inside and drop is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

Made = tuple[Tensor, Sequence[Tensor]]


class KernelWithSavedTensors(torch.autograd.Function):
    """One kernel: its output, and gradients like its inputs."""

    @staticmethod
    def forward(ctx: Any, make: Callable[[], Made], *inputs: Any) -> Tensor:
        """Return the output; keep the inputs and what ``make`` says."""
        out, kept = make()
        ctx.save_for_backward(*inputs, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        """Return a gradient for each input that needs one."""
        needed = zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=False)
        return None, *(torch.empty_like(x) if wanted else None for x, wanted in needed)


def _applied(make: Callable[[], Made], *inputs: Any) -> Tensor:
    return cast("Tensor", KernelWithSavedTensors.apply(make, *inputs))


def causal_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    """Return a tensor like ``x``; keep ``x`` and the parameters."""
    return _applied(lambda: (torch.empty_like(x), ()), x, weight, bias)


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,  # noqa: N803 - upstream's names
    D: Tensor | None = None, z: Tensor | None = None, dt_bias: Tensor | None = None,  # noqa: N803 - upstream's names
    **_: Any,
) -> Tensor:  # fmt: skip
    """Return a tensor like ``x``; keep the inputs, the output before the gate, and the decays."""

    def make() -> Made:
        out = x.new_empty(x.shape)
        chunks = -(-x.shape[1] // chunk_size)
        decay = x.new_empty(x.shape[0], x.shape[2], chunks, chunk_size, dtype=torch.float32)
        return out, (out if z is None else x.new_empty(x.shape), decay)

    return _applied(make, x, dt, A, B, C, D, z, dt_bias)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, dt_bias: Tensor,
    A: Tensor, D: Tensor, chunk_size: int, headdim: int | None = None, **_: Any,  # noqa: N803 - upstream's names
) -> Tensor:  # fmt: skip
    """Return (batch, tokens, inner); keep the inputs and the output before the gate."""
    width = D.shape[1] if D.dim() == 2 else int(headdim or 0)
    size = (*zxbcdt.shape[:2], D.shape[0] * width)

    def make() -> Made:
        return zxbcdt.new_empty(size), (zxbcdt.new_empty(size),)

    return _applied(make, zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D)


def gated_norm(x: Tensor, z: Tensor | None, weight: Tensor, size: int, **_: Any) -> Tensor:
    """Return a tensor like ``x``; keep the inputs and one number for each group of channels."""

    def make() -> Made:
        return x.new_empty(x.shape), (x.new_empty(x.numel() // size, dtype=torch.float32),)

    return _applied(make, x, weight, z)


SCANS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    function.__name__: function for function in (
        causal_conv1d_fn, mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined,
        gated_norm,
    )
})  # fmt: skip
"""Kernels by name, as `state_space.install` takes them."""
