"""The stand-in of Apex's layer norms and softmax kernels, which Megatron's own layers call."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ringproof.rehearsal.standins.extension import Wrap
from ringproof.rehearsal.standins.guard import provide

LAYER_NORM = "apex.normalization.fused_layer_norm"
PERSISTENT = "apex.contrib.layer_norm.layer_norm"
THREADS, WARP = 128, 32


def install(wrap: Wrap) -> None:
    """Let Megatron import them; before it is imported.

    Args:
        wrap: Put around each kernel.
    """
    for name in (LAYER_NORM, PERSISTENT):
        parts = name.split(".")
        for count in range(1, len(parts)):
            provide(".".join(parts[:count]))
    forward, backward = (wrap(f"apex.{f.__name__}", f) for f in (_norm, _norm_gradients))
    provide(LAYER_NORM, FusedLayerNormAffineFunction=_function(forward, backward, has_shape=True))
    provide(PERSISTENT, FastLayerNormFN=_function(forward, backward, has_shape=False))
    kernels: dict[str, dict[str, Any]] = {
        "scaled_upper_triang_masked_softmax_cuda": {"forward": _causal},
        "scaled_masked_softmax_cuda": {"forward": _masked, "get_batch_per_block": _batches},
        "scaled_softmax_cuda": {"forward": _softmax},
    }
    for module, functions in kernels.items():
        functions["backward"] = _softmax_gradient
        provide(module, **{name: wrap(f"{module}.{name}", f) for name, f in functions.items()})


def _function(forward: Any, backward: Any, *, has_shape: bool) -> type:
    """Return a layer norm, whose arguments are input, weight, bias, a shape and epsilon."""

    class LayerNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
            epsilon = rest[1] if has_shape else rest[0]
            out, mean, inverse = forward(x, weight, bias, epsilon)
            ctx.save_for_backward(x, weight, bias, mean, inverse)
            ctx.unused = len(rest)
            return cast("Tensor", out)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return (*backward(gradient, *ctx.saved_tensors), *[None] * ctx.unused)

    return LayerNorm


def _norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    out, mean, inverse = torch.native_layer_norm(x, weight.shape, weight, bias, epsilon)
    return out, mean.float(), inverse.float()


def _norm_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor
) -> Any:
    mean, inverse = mean.to(x.dtype), inverse.to(x.dtype)
    return torch.ops.aten.native_layer_norm_backward(
        gradient, x, weight.shape, mean, inverse, weight, bias, [True, True, True]
    )


def _softmax(scores: Tensor, scale: Tensor) -> Tensor:
    return torch.softmax(scores.float() * scale, -1).to(scores.dtype)


def _masked(scores: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
    found = (scores.float() * scale).masked_fill(mask, -10000.0)
    return torch.softmax(found, -1).to(scores.dtype)


def _causal(scores: Tensor, scale: Tensor) -> Tensor:
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    found = (scores.float() * scale).masked_fill(hidden, float("-inf"))
    return torch.softmax(found, -1).to(scores.dtype)


def _softmax_gradient(gradient: Tensor, softmax: Tensor, scale: Tensor) -> Tensor:
    """Write the gradient of the scores into that of the softmax, as Apex does."""
    product = gradient.float() * softmax
    product -= softmax * product.sum(-1, keepdim=True)
    return gradient.copy_(product * scale)


def _batches(_: int, keys: int, *__: int) -> int:
    """Return the rows that a block of threads takes; source: ``scaled_masked_softmax.h``."""
    width = 1 << max(keys - 1, 0).bit_length()
    return THREADS // min(width, WARP) * (2 if width <= THREADS else 1)
