"""Kernels that make what the real ones return and compute nothing, for tensors of full size."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ringproof.rehearsal.hollow.storages import Storages
from ringproof.rehearsal.standins.attention import Arguments, Call, SequencePlace
from ringproof.rehearsal.standins.compiler import function_of

CUBLAS_STREAMS = 4
"""Streams of grouped matrix products in Transformer Engine, each with a workspace."""


class HollowAttention:
    """Fused attention that makes its results only; counts its floating-point operations.

    Attributes:
        flops: Operations so far, two per multiply-add, of the pairs that the mask leaves.
    """

    def __init__(self) -> None:
        self.flops = 0

    def forward(self, given: Arguments) -> tuple[Tensor, list[Tensor]]:
        """Return the output, and the LSE in float32 with a state of the generator."""
        call = _call("fused_attn_fwd", given)
        q, channels = call.q, call.q.shape[-1] + call.v.shape[-1]
        self.flops += 2 * _pairs(call, given) * q.shape[-2] * channels
        lse = q.new_empty(*call.lse_shape(), 1, dtype=torch.float32)
        state = torch.zeros(2, dtype=torch.int64)
        return q.new_empty(*q.shape[:-1], call.v.shape[-1]), [lse, state]

    def backward(self, given: Arguments) -> list[Tensor | None]:
        """Return gradients of queries, keys and values."""
        call = _call("fused_attn_bwd", given)
        channels = 3 * call.q.shape[-1] + 2 * call.v.shape[-1]
        self.flops += 2 * _pairs(call, given) * call.q.shape[-2] * channels
        return [*map(torch.empty_like, (call.q, call.k, call.v)), None, None]


def _call(symbol: str, given: Arguments) -> Call:
    """Read a call; dropout only changes numbers here."""
    return Call(symbol, MappingProxyType({**given, "dropout": 0.0}))


def _pairs(call: Call, given: Arguments) -> int:
    """Return the pairs of query and key that the kernel computes; of a window, too many."""
    causal = "causal" in given["attn_mask_type"]
    return sum(_causal(q, k) if causal else q.length * k.length for q, k in call.sequences())


def _causal(queries: SequencePlace, keys: SequencePlace) -> int:
    rows, columns = queries.length, keys.length
    if rows > columns:
        return columns * (columns + 1) // 2
    return rows * columns - rows * (rows - 1) // 2


def _nothing(*_: object) -> None:
    """Change tensors in place that have no content."""


def _norms(
    chunk: int, overflow: Tensor, lists: list[list[Tensor]], per_tensor: bool | None = False
) -> tuple[Tensor, Tensor]:
    """Return norms of zero."""
    each = torch.zeros(len(lists[0])) if per_tensor else torch.empty(0)
    return torch.zeros(1), each


def _rotated(x: Tensor, *_: object) -> Tensor:
    """Return a tensor of the same shape."""
    return x.new_empty(x.shape)


def _half(x: Tensor, *_: object) -> Tensor:
    """Return room for half of the rows [t, h, d]."""
    return x.new_empty(*x.shape[:-3], x.shape[-3] // 2, *x.shape[-2:])


def _second_half(lse: Tensor, cu_seqlens: Tensor, packed: bool, length: int) -> Tensor:
    """Return room for the LSE of the second half of every sequence."""
    return lse.new_empty(*lse.shape[: 1 if packed else 2], length)


KERNELS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "fused_rope_forward": _rotated,
    "fused_rope_backward": _rotated,
    "thd_read_half_tensor": _half,
    "thd_read_second_half_lse": _second_half,
    "thd_second_half_lse_correction": _nothing,
    "thd_out_correction": _nothing,
    "thd_grad_correction": _nothing,
    "multi_tensor_scale": _nothing,
    "multi_tensor_scale_tensor": _nothing,
    "multi_tensor_adam": _nothing,
    "multi_tensor_adam_param_remainder": _nothing,
    "multi_tensor_l2norm": _norms,
})  # fmt: skip
"""Kernels over lists of whole buffers or over every sequence of a pack, by symbol."""


def boundary(
    storages: Storages, *, computes: bool = False
) -> Callable[[str, Callable[..., Any]], Callable[..., Any]]:
    """Return what stand-ins of kernels are put behind: their temporaries are not counted."""

    def wrap(symbol: str, function: Callable[..., Any]) -> Callable[..., Any]:
        name = symbol.rpartition(".")[2]
        inner: Callable[..., Any] = function
        if not computes:
            inner = KERNELS.get(name, function)

        @functools.wraps(inner)
        def call(*arguments: Any, **named: Any) -> Any:
            with storages.kernel():
                return inner(*arguments, **named)

        return call

    return wrap


def compiled(storages: Storages) -> Callable[..., Any]:
    """Return what stands for ``torch.compile``: a function becomes one kernel."""

    def decorate(function: Any = None, *_: object, **named: object) -> Any:
        function = function_of(function, named)
        if function is None:
            return decorate
        if not callable(function) or isinstance(function, type):
            return function

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            with storages.kernel(compiled=True):
                return function(*arguments, **named)

        return call

    return decorate


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Drop out as on a GPU, where the mask takes one byte for each element."""
    return torch.native_dropout(input, p, True)[0] if training and p else input
