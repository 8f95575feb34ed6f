"""Local kernels of Transformer Engine's compiled extension, as torch operations on the host.

Exact in the dtype of the inputs, float64 included; nothing here communicates. The arguments are
those of the functions that Transformer Engine binds in ``transformer_engine_torch`` (its
``csrc/extensions/pybind.cpp``); an argument that a stand-in would have to ignore is refused.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ringproof.rehearsal.standins import guard


def refuse(symbol: str, **unsupported: object) -> None:
    """Refuse arguments of a kernel that its stand-in does not compute."""
    guard.refuse(f"transformer_engine_torch.{symbol}", **unsupported)


def generic_gemm(
    a: Tensor, transa: bool, b: Tensor, transb: bool, d: Tensor | None, quantizer: Any,
    out_dtype: Any, bias: Tensor | None, bias_type: Any, gelu: bool, gelu_in: Tensor | None,
    grad: bool, workspace: Any, workspace_size: int, accumulate: bool,
    use_split_accumulator: bool, comm_overlap: Any = None, comm_type: Any = None,
    extra_output: Any = None, bulk_overlap: bool = False, alpha: float = 1.0,
    beta: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Multiply as cuBLAS does: ``D = op(B) op(A)`` in row-major terms, plus bias.

    Without ``grad`` the bias is added to the result; with it, the bias gradient (sum over rows of
    ``B``) is returned.
    """
    refuse(
        "generic_gemm", quantizer=quantizer, gelu=gelu, comm_overlap=comm_overlap,
        extra_output=extra_output, bulk_overlap=bulk_overlap,
        beta=None if beta in (None, float(accumulate)) else f"{beta} and accumulate={accumulate}",
    )  # fmt: skip
    # cuBLAS is column-major, so that upstream hands the operands over in the other order.
    left = b.reshape(-1, b.shape[-1])
    right = a.reshape(-1, a.shape[-1])
    product = (left.t() if transb else left) @ (right.t() if transa else right)
    if alpha != 1.0:
        product = product * alpha
    if not transb:
        product = product.reshape(*b.shape[:-1], product.shape[-1])
    bias_gradient = None
    if bias is not None and bias.numel():
        if grad:
            bias_gradient = left.sum(0).to(bias.dtype)
        else:
            product = product + bias
    return _stored(product, d, accumulate, out_dtype), bias_gradient, None, extra_output


def _stored(product: Tensor, out: Tensor | None, accumulate: bool, dtype: Any) -> Tensor:
    if out is None:
        return product.to(_torch_type("generic_gemm", dtype, product.dtype))
    product = product.reshape(out.shape).to(out.dtype)
    return out.add_(product) if accumulate else out.copy_(product)


# Values of transformer_engine::DType, which every release has kept.
FLOAT64 = 64  # not one of them
TORCH_TYPES = MappingProxyType(
    {4: torch.float32, 5: torch.float16, 6: torch.bfloat16, FLOAT64: torch.float64}
)


def _torch_type(symbol: str, dtype: Any, default: torch.dtype) -> torch.dtype:
    """The dtype that upstream asks a result in; refused where it has no counterpart here."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype or default
    if int(dtype) not in TORCH_TYPES:
        refuse(symbol, out_dtype=f"{dtype!r}")
    return TORCH_TYPES[int(dtype)]


def te_general_grouped_gemm(
    a: list[Tensor], transa: bool, b: list[Tensor], transb: bool, d: list[Tensor] | None,
    out_dtype: Any, m_splits: list[int], bias: list[Tensor], bias_type: Any, single_output: bool,
    pre_gelu_out: Any, grad: bool, workspaces: Any, workspace_size: int, accumulate: bool,
    use_split_accumulator: bool, sm_count: int,
) -> list[Tensor] | None:  # fmt: skip
    """Multiply one pair of matrices per expert; with ``single_output`` into one buffer."""
    refuse(
        "te_general_grouped_gemm", pre_gelu_out=pre_gelu_out,
        d="None, so that results would be lost" if d is None else None,
    )  # fmt: skip
    assert d is not None
    outputs = list(d[0].split(list(m_splits))) if single_output else list(d)
    gradients = []
    for index, (one, other, out) in enumerate(zip(a, b, outputs, strict=True)):
        given = bias[index] if bias and bias[index].numel() else None
        _, gradient, _, _ = generic_gemm(
            one, transa, other, transb, out, None, out_dtype, given, bias_type, False,
            None, grad, None, 0, accumulate, use_split_accumulator,
        )  # fmt: skip
        if gradient is not None:
            bias[index].copy_(gradient)
        gradients.append(bias[index] if bias else None)
    return gradients if grad else bias


def layernorm_fwd(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None,
    quantizer: Any, out_dtype: Any, sm_margin: int, zero_centered_gamma: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Normalise rows; return the output, the mean and the reciprocal deviation per row."""
    refuse("layernorm_fwd", quantizer=quantizer)
    wide = x.to(_wide(x.dtype))
    mean = wide.mean(-1)
    scale = torch.rsqrt(wide.var(-1, unbiased=False) + eps)
    gamma = weight.to(wide.dtype) + (1 if zero_centered_gamma else 0)
    y = (wide - mean[..., None]) * scale[..., None] * gamma
    if bias is not None:
        y = y + bias
    y = y.to(_torch_type("layernorm_fwd", out_dtype, x.dtype))
    return (y if out is None else out.copy_(y)), mean, scale


def layernorm_bwd(
    dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of input, weight and bias."""
    wide = _wide(x.dtype)
    normal = (x.to(wide) - mean[..., None]) * scale[..., None]
    incoming = dy.reshape(x.shape).to(wide)
    inner = incoming * (weight.to(wide) + (1 if zero_centered_gamma else 0))
    centred = inner - inner.mean(-1, keepdim=True)
    dx = scale[..., None] * (centred - normal * (inner * normal).mean(-1, keepdim=True))
    rows = (incoming * normal).reshape(-1, x.shape[-1]).sum(0)
    shift = incoming.reshape(-1, x.shape[-1]).sum(0)
    return dx.to(x.dtype), rows.to(weight.dtype), shift.to(weight.dtype)


def rmsnorm_fwd(
    x: Tensor, weight: Tensor, eps: float, out: Tensor | None, quantizer: Any, out_dtype: Any,
    sm_margin: int, zero_centered_gamma: bool,
) -> tuple[Tensor, None, Tensor]:  # fmt: skip
    """Scale rows by their root mean square; return output, nothing, reciprocal root per row."""
    refuse("rmsnorm_fwd", quantizer=quantizer)
    wide = x.to(_wide(x.dtype))
    scale = torch.rsqrt(wide.square().mean(-1) + eps)
    gamma = weight.to(wide.dtype) + (1 if zero_centered_gamma else 0)
    y = (wide * scale[..., None] * gamma).to(_torch_type("rmsnorm_fwd", out_dtype, x.dtype))
    return (y if out is None else out.copy_(y)), None, scale


def rmsnorm_bwd(
    dy: Tensor, x: Tensor, scale: Tensor, weight: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of input and weight."""
    wide = _wide(x.dtype)
    normal = x.to(wide) * scale[..., None]
    incoming = dy.reshape(x.shape).to(wide)
    inner = incoming * (weight.to(wide) + (1 if zero_centered_gamma else 0))
    dx = scale[..., None] * (inner - normal * (inner * normal).mean(-1, keepdim=True))
    rows = (incoming * normal).reshape(-1, x.shape[-1]).sum(0)
    return dx.to(x.dtype), rows.to(weight.dtype)


def rmsnorm_bwd_add(
    dy: Tensor, x: Tensor, add: Tensor, scale: Tensor, weight: Tensor, sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of input and weight, ``add`` added to the first."""
    dx, rows = rmsnorm_bwd(dy, x, scale, weight, sm_margin, zero_centered_gamma)
    return dx + add, rows


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which GPU kernels accumulate: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def swiglu(x: Tensor, quantizer: Any = None) -> Tensor:
    """Return ``silu(a) * b`` for the two halves of the last dimension."""
    refuse("swiglu", quantizer=quantizer)
    gate, value = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * value


def dswiglu(grad: Tensor, x: Tensor, quantizer: Any = None) -> Tensor:
    """Return the gradient of `swiglu`'s input."""
    refuse("dswiglu", quantizer=quantizer)
    gate, value = x.chunk(2, -1)
    sigmoid = torch.sigmoid(gate)
    slope = sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat([grad * value * slope, grad * gate * sigmoid], -1)


def multi_tensor_scale(
    chunk: int, overflow: Tensor, lists: list[list[Tensor]], scale: float | Tensor
) -> None:
    """Write ``scale`` times each tensor of the first list into the second."""
    for source, target in zip(*lists, strict=True):
        target.copy_(source * scale)
        if not bool(torch.isfinite(source).all()):
            overflow.fill_(1)


def multi_tensor_scale_tensor(
    chunk: int, overflow: Tensor, lists: list[list[Tensor]], scale: Tensor
) -> None:
    """Do the same by a factor that is a tensor."""
    multi_tensor_scale(chunk, overflow, lists, scale)


def multi_tensor_l2norm(
    chunk: int, overflow: Tensor, lists: list[list[Tensor]], per_tensor: bool | None = False
) -> tuple[Tensor, Tensor]:
    """Return the Euclidean norm over all tensors, shape [1], and of each tensor if asked."""
    wide = _wide(lists[0][0].dtype)
    squares = torch.stack([tensor.to(wide).square().sum() for tensor in lists[0]])
    each = squares.sqrt() if per_tensor else torch.empty(0)
    return squares.sum().sqrt().reshape(1), each


def multi_tensor_adam(
    chunk: int, overflow: Tensor, lists: list[list[Tensor]], lr: float, beta1: float, beta2: float,
    eps: float, step: int, mode: int, bias_correction: int, weight_decay: float,
) -> None:  # fmt: skip
    """Take one Adam step; ``mode`` 1 decouples the weight decay (AdamW)."""
    # As the real kernel: moments in their own dtype, and the update in the parameter's.
    first = 1 - beta1**step if bias_correction else 1.0
    second = 1 - beta2**step if bias_correction else 1.0
    for gradient, parameter, mean, square, *copies in zip(*lists, strict=True):
        wide = gradient.to(mean.dtype)
        if mode == 0 and weight_decay:
            wide = wide + weight_decay * parameter
        mean.mul_(beta1).add_(wide, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(wide, wide, value=1 - beta2)
        update = (mean / first) / ((square / second).sqrt() + eps)
        if mode == 1:
            update = update + weight_decay * parameter
        parameter.sub_((lr * update).to(parameter.dtype))
        for copy in copies:
            copy.copy_(parameter)


def multi_tensor_adam_param_remainder(
    chunk: int, overflow: Tensor, lists: list[list[Tensor]], *rest: Any
) -> None:
    """Do the same for bfloat16 parameters whose float32 rest is in a list of int16 tensors.

    A parameter is rounded up where its rest, the lower half of the float32 number, is negative.
    Source: ``adam.cu`` of Transformer Engine's multi-tensor kernels.
    """
    gradients, parameters, means, squares, rests = lists
    whole = []
    for parameter, low in zip(parameters, rests, strict=True):
        high = parameter.view(torch.int16).int() - (low < 0).int()
        whole.append(((high << 16) | (low.int() & 0xFFFF)).view(torch.float32))
    multi_tensor_adam(chunk, overflow, [gradients, whole, means, squares], *rest)
    for parameter, low, exact in zip(parameters, rests, whole, strict=True):
        bits = exact.view(torch.int32)
        low.copy_(bits.to(torch.int16))
        parameter.view(torch.int16).copy_((bits >> 16) + (low < 0).int())


def fused_rope_forward(x: Tensor, freqs: Tensor, *rest: Any) -> Tensor:
    """Rotate ``x``; see `_angles` for which angle a row gets."""
    return _rotated(x, freqs, rest, 1)


def fused_rope_backward(grad: Tensor, freqs: Tensor, *rest: Any) -> Tensor:
    """Rotate a gradient back; up to release 2.9 without the argument for start positions."""
    return _rotated(grad, freqs, rest if len(rest) == 6 else (None, *rest), -1)


def _rotated(x: Tensor, freqs: Tensor, rest: tuple[Any, ...], sign: int) -> Tensor:
    if len(rest) != 6:
        raise TypeError(f"fused_rope takes 8 arguments, {len(rest) + 2} were given")
    starts, layout, interleaved, cu_seqlens, size, rank = rest
    refuse("fused_rope_forward", start_positions=starts)
    angles = _angles(x, freqs, layout.name, cu_seqlens, size, rank).to(_wide(x.dtype))
    width = angles.shape[-1]
    head, tail = x[..., :width].to(angles.dtype), x[..., width:]
    turned = head * angles.cos() + sign * _quarter(head, interleaved) * angles.sin()
    return torch.cat([turned.to(x.dtype), tail], -1)


def _quarter(x: Tensor, interleaved: bool) -> Tensor:
    """Turn pairs of channels by 90 degrees: neighbours, or the halves of the last dimension."""
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _angles(
    x: Tensor, freqs: Tensor, layout: str, cu_seqlens: Tensor | None, size: int, rank: int
) -> Tensor:
    """Angles for each row of a local tensor, broadcast over heads.

    Each sequence of ``2 * size`` chunks has chunks ``rank`` and ``2 * size - 1 - rank`` here.
    """
    table = freqs.reshape(freqs.shape[0], freqs.shape[-1])
    if layout.endswith("THD"):
        assert cu_seqlens is not None
        lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
        rows = [_positions(length // size, size, rank) for length in lengths]
        found = torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)
        padding = x.shape[0] - found.numel()
        return table[torch.nn.functional.pad(found, (0, padding))][:, None]
    axis = 0 if layout.endswith("SBHD") else 1
    found = table[_positions(x.shape[axis], size, rank)]
    return found[:, None, None] if axis == 0 else found[None, :, None]


def _positions(local: int, size: int, rank: int) -> Tensor:
    if size == 1:
        return torch.arange(local)
    half = torch.arange(local // 2)
    return torch.cat([half + rank * (local // 2), half + (2 * size - 1 - rank) * (local // 2)])
