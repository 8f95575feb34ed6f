"""Kernels of ``mamba_ssm`` and ``causal_conv1d`` as torch operations, exact in their dtype.

Only what training calls: the convolution, the state space scan (in its quadratic form) and the
gated norm. Initial and final states, which inference uses, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ringproof.rehearsal.standins.guard import noted, provide, refuse


def causal_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None,
    initial_states: Any = None, return_final_states: bool = False, final_states_out: Any = None,
    activation: str | None = None,
) -> Tensor:  # fmt: skip
    """Convolve each channel causally; a token sees only tokens of its own sequence.

    Args:
        x: Input, (batch, channels, tokens).
        weight: (channels, width).
        bias: (channels).
        seq_idx: Sequence of each token, (batch, tokens).
        activation: ``silu``, ``swish`` or ``None``.
    """
    refuse("causal_conv1d.causal_conv1d_fn", initial_states=initial_states,
            return_final_states=return_final_states, final_states_out=final_states_out)  # fmt: skip
    width, tokens = weight.shape[1], x.shape[2]
    total = torch.zeros_like(x) if bias is None else bias[None, :, None].expand_as(x)
    for tap in range(width):
        back = width - 1 - tap
        shifted = functional.pad(x, (back, 0))[..., :tokens]
        if seq_idx is not None and back:
            before = functional.pad(seq_idx, (back, 0), value=-1)[:, :tokens]
            shifted = shifted * (before == seq_idx)[:, None]
        total = total + weight[None, :, tap, None] * shifted
    return functional.silu(total) if activation in ("silu", "swish") else total


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,  # noqa: N803 - upstream's names
    D: Tensor | None = None, z: Tensor | None = None, dt_bias: Tensor | None = None,  # noqa: N803 - upstream's names
    initial_states: Any = None, seq_idx: Tensor | None = None, dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")), return_final_states: bool = False,
) -> Tensor:  # fmt: skip
    """Scan the state space: ``h[t] = exp(dt A) h[t-1] + dt B x``, ``y[t] = C h[t] + D x``.

    Args:
        x: (batch, tokens, heads, width).
        dt: (batch, tokens, heads).
        A: (heads).
        B: (batch, tokens, groups, state).
        C: As ``B``.
        chunk_size: Ignored; it does not change the result.
        D: (heads) or (heads, width).
        z: Gate, as ``x``; the result is multiplied by its SiLU.
        dt_bias: (heads).
        seq_idx: Sequence of each token, (batch, tokens); states do not pass between sequences.
        dt_softplus: Whether ``dt`` goes through softplus.
        dt_limit: Range to which ``dt`` is clamped.
    """
    refuse("mamba_ssm.mamba_chunk_scan_combined", initial_states=initial_states,
            return_final_states=return_final_states)  # fmt: skip
    wide = torch.promote_types(x.dtype, torch.float32)
    step = dt.to(wide) if dt_bias is None else dt.to(wide) + dt_bias
    step = (functional.softplus(step) if dt_softplus else step).clamp(*dt_limit)
    per_group = x.shape[2] // B.shape[2]
    keys, queries = (part.to(wide).repeat_interleave(per_group, 2) for part in (B, C))
    decay = torch.cumsum(step * A.to(wide), 1)
    seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None]
    if seq_idx is not None:
        seen = seen & (seq_idx[:, :, None] == seq_idx[:, None, :])
    gaps = (decay[:, :, None] - decay[:, None]).masked_fill(~seen[..., None], float("-inf"))
    weights = torch.einsum("bihn,bjhn->bijh", queries, keys) * gaps.exp() * step[:, None]
    result = torch.einsum("bijh,bjhp->bihp", weights, x.to(wide))
    if D is not None:
        result = result + x.to(wide) * (D[:, None] if D.dim() == 1 else D)
    if z is not None:
        result = result * functional.silu(z.to(wide))
    return result.to(x.dtype)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, dt_bias: Tensor,
    A: Tensor, D: Tensor, chunk_size: int, initial_states: Any = None,  # noqa: N803 - upstream's names
    seq_idx: Tensor | None = None, dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False, activation: str = "silu", rmsnorm_weight: Any = None,
    rmsnorm_eps: float = 1e-6, outproj_weight: Any = None, outproj_bias: Any = None,
    headdim: int | None = None, ngroups: int = 1, norm_before_gate: bool = True,
) -> Tensor:  # fmt: skip
    """Split a projection into gate, convolution input and step, convolve, scan and gate.

    Args:
        zxbcdt: (batch, tokens, 2 * inner + 2 * groups * state + heads).
        conv1d_weight: (inner + 2 * groups * state, width).
        conv1d_bias: (inner + 2 * groups * state).
        dt_bias: (heads).
        A: (heads).
        D: (heads) or (heads, width).
        chunk_size: See `mamba_chunk_scan_combined`, as for the rest.
    """
    refuse("mamba_ssm.mamba_split_conv1d_scan_combined", initial_states=initial_states,
            return_final_states=return_final_states, rmsnorm_weight=rmsnorm_weight,
            outproj_weight=outproj_weight, outproj_bias=outproj_bias)  # fmt: skip
    heads = D.shape[0]
    width = D.shape[1] if D.dim() == 2 else int(headdim or 0)
    inner = heads * width
    shared = (zxbcdt.shape[-1] - 2 * inner - heads) // 2
    gate, mixed, step = zxbcdt.split([inner, inner + 2 * shared, heads], -1)
    mixed = causal_conv1d_fn(
        mixed.transpose(1, 2), conv1d_weight, conv1d_bias, seq_idx, activation=activation
    ).transpose(1, 2)
    x, b, c = mixed.split([inner, shared, shared], -1)
    result = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, width)), step, A, b.unflatten(-1, (ngroups, -1)),
        c.unflatten(-1, (ngroups, -1)), chunk_size, D=D, dt_bias=dt_bias,
        z=gate.unflatten(-1, (heads, width)), seq_idx=seq_idx, dt_softplus=True,
        dt_limit=dt_limit,
    )  # fmt: skip
    return result.flatten(2)


def gated_norm(
    x: Tensor, z: Tensor | None, weight: Tensor, size: int, *, eps: float, norm_before_gate: bool
) -> Tensor:
    """Return the norm of groups of ``size`` channels, gated by the SiLU of ``z`` if given."""
    wide = torch.promote_types(x.dtype, torch.float32)
    value = x.to(wide)
    gate = None if z is None else functional.silu(z.to(wide))
    if gate is not None and not norm_before_gate:
        value = value * gate
    groups = value.unflatten(-1, (-1, size))
    groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)
    value = groups.flatten(-2) * weight
    if gate is not None and norm_before_gate:
        value = value * gate
    return value.to(x.dtype)


class RMSNorm(torch.nn.Module):
    """Normalise groups of channels, with a gate before or after.

    Args:
        group_size: Channels of a group; ``None`` for all.
        norm_before_gate: Whether the gate comes after the norm.
    """

    kernel = staticmethod(gated_norm)

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, group_size: int | None = None,
        norm_before_gate: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Return the norm of ``x``, gated by the SiLU of ``z`` if that is given."""
        size = self.group_size or x.shape[-1]
        return self.kernel(
            x, z, self.weight, size, eps=self.eps, norm_before_gate=self.norm_before_gate
        )


COMPUTING: Mapping[str, Callable[..., Any]] = MappingProxyType({
    function.__name__: function for function in (
        causal_conv1d_fn, mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined, gated_norm,
    )
})  # fmt: skip
"""Kernels by name, which compute."""


def install(used: set[str], kernels: Mapping[str, Callable[..., Any]] = COMPUTING) -> None:
    """Let Megatron import both packages.

    Args:
        used: Gets the name of a package when one of its functions is called.
        kernels: Those of `COMPUTING`, or others by the same names.
    """
    convolution = noted(kernels["causal_conv1d_fn"], used, "causal-conv1d")
    norm = type("RMSNorm", (RMSNorm,), {"kernel": staticmethod(kernels["gated_norm"])})
    names = (name for name in kernels if name.startswith("mamba"))
    scans = {name: noted(kernels[name], used, "mamba-ssm") for name in names}
    for name, members in (
        ("mamba_ssm", {"__version__": "2.2.6.post3"}),
        ("mamba_ssm.ops", {}),
        ("mamba_ssm.ops.triton", {}),
        ("mamba_ssm.ops.triton.layernorm_gated", {"RMSNorm": norm}),
        (
            "mamba_ssm.ops.triton.ssd_combined",
            scans,
        ),
        ("causal_conv1d", {"__version__": "1.5.3.post1", "causal_conv1d_fn": convolution}),
        ("causal_conv1d.causal_conv1d_varlen", {}),
        ("causal_conv1d.cpp_functions", {}),
    ):
        provide(name, **members)
