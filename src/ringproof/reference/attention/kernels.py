"""Local attention math: output and LSE, and gradients given the output and LSE.

A ring needs both. The backward of a block takes the *global* output and LSE of its rows, which
makes each block's gradients exact summands of the whole. A kernel that cannot give an LSE has
no place here.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ringproof.errors import InputError
from ringproof.reference.attention.merge import accumulation_dtype
from ringproof.reference.attention.names import KERNEL_NAMES, check_name

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class AttentionKernel(Protocol):
    """What the loop asks of a kernel. Tensors are ``[B, S, H, D]``, LSE is ``[B, S, H]``."""

    name: str

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output ``[B, S, H, V]`` and natural-log LSE ``[B, S, H]`` over this block's keys."""
        ...

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: Gradients,
        out: torch.Tensor,
        lse: torch.Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> Gradients:
        """Summands of dq, dk, dv from one block.

        Args:
            grad_out: ``[B, S, H, V]``.
            inputs: q ``[B, S, H, D]``, k ``[B, T, G, D]``, v ``[B, T, G, V]`` of the block.
            out: Global output of these rows.
            lse: Global LSE of these rows.
            causal: As in the forward.
            scale: As in the forward.
        """
        ...


class ReferenceKernel:
    """The formula, written out; any data type, any device. Materialises ``S x T`` scores."""

    name = "reference"

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`AttentionKernel`."""
        scores = self.scores(q, k, causal=causal, scale=scale)
        lse = torch.logsumexp(scores, dim=-1)
        weights = torch.exp(scores - lse.unsqueeze(-1))
        out = torch.einsum("bhst,bthv->bshv", weights, _per_query_head(v, q).to(weights.dtype))
        return out.to(q.dtype), lse.transpose(1, 2)

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: Gradients,
        out: torch.Tensor,
        lse: torch.Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> Gradients:
        """``dS = P * (dP - rowsum(dO * O))``, the flash attention backward (arXiv 2205.14135)."""
        q, k, v = inputs
        scores = self.scores(q, k, causal=causal, scale=scale)
        weights = torch.exp(scores - lse.transpose(1, 2).unsqueeze(-1))
        grad = grad_out.to(weights.dtype)
        grad_weights = torch.einsum(
            "bshv,bthv->bhst", grad, _per_query_head(v, q).to(weights.dtype)
        )
        row_sum = (grad * out.to(weights.dtype)).sum(-1).transpose(1, 2).unsqueeze(-1)
        grad_scores = weights * (grad_weights - row_sum) * scale
        dq = torch.einsum("bhst,bthd->bshd", grad_scores, _per_query_head(k, q).to(weights.dtype))
        dk = torch.einsum("bhst,bshd->bthd", grad_scores, q.to(weights.dtype))
        dv = torch.einsum("bhst,bshv->bthv", weights, grad)
        return dq.to(q.dtype), _per_kv_head(dk, k), _per_kv_head(dv, v)

    def scores(
        self, q: torch.Tensor, k: torch.Tensor, *, causal: bool, scale: float
    ) -> torch.Tensor:
        """Scaled scores ``[B, H, S, T]`` in the accumulation type, hidden ones minus infinity."""
        return _scores(q, k, causal=causal, scale=scale)


class FlashKernel:
    """ATen's flash attention, which returns the LSE: CPU (any float) and CUDA (16-bit floats).

    The operators want equal head counts and head dimensions and contiguous rows (the CPU one reads
    out of bounds otherwise), so grouped queries become batch entries that share one key/value head
    by a zero stride, and a narrower ``D`` or ``V`` is padded with zeros: both exact.
    """

    name = "sdpa"

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`AttentionKernel`."""
        folded = _fold(q, k, v)
        if q.device.type == "cpu":
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *folded, 0.0, causal, scale=scale
            )
        else:
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention(
                *folded, 0.0, causal, False, scale=scale
            )[:2]
        return _unfold(out, q)[..., : v.shape[-1]], _unfold(lse.unsqueeze(-1), q).squeeze(-1)

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: Gradients,
        out: torch.Tensor,
        lse: torch.Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> Gradients:
        """See :class:`AttentionKernel`."""
        q, k, v = inputs
        width = _width(q, v)
        folded = _fold(q, k, v)
        grad = _fold_queries(_pad(grad_out, width), k.shape[2])
        result = _fold_queries(_pad(out, width), k.shape[2])
        sums = _fold_queries(lse.unsqueeze(-1), k.shape[2]).squeeze(-1)
        if q.device.type == "cpu":
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, *folded, result, sums, 0.0, causal, scale=scale
            )
        else:
            unused = torch.empty(2, dtype=torch.int64, device=q.device)  # RNG state, no dropout
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
                grad, *folded, result, sums.contiguous(), None, None,
                q.shape[1], k.shape[1], 0.0, causal, unused, unused, scale=scale,
            )  # fmt: skip
        dq = _unfold(dq, q)[..., : q.shape[-1]]
        return dq, _sum_groups(dk, k), _sum_groups(dv, v)


def choose_kernel(name: str, q: torch.Tensor, v: torch.Tensor) -> AttentionKernel:
    """The kernel of that name; ``auto`` is flash where it serves these tensors.

    Args:
        name: One of :data:`KERNEL_NAMES`.
        q: ``[B, S, H, D]``.
        v: ``[B, S, G, V]``.

    Raises:
        InputError: There is none, or flash attention cannot serve device, data type or width.
    """
    check_name("kernel", name, KERNEL_NAMES)
    obstacle = _flash_obstacle(q, v)
    if name == FlashKernel.name and obstacle:
        raise InputError("kernel", name, obstacle, "use auto or reference")
    flash = name != ReferenceKernel.name and not obstacle
    return FlashKernel() if flash else ReferenceKernel()


def _flash_obstacle(q: torch.Tensor, v: torch.Tensor) -> str:
    """Why ATen's flash attention cannot serve; empty when it can."""
    if q.device.type == "cpu":
        return ""
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"flash attention on {q.device.type} takes 16-bit floats, not {q.dtype}"
    width = _width(q, v)
    return f"flash attention takes a width up to 256, not {width}" if width > 256 else ""


def _scores(q: torch.Tensor, k: torch.Tensor, *, causal: bool, scale: float) -> torch.Tensor:
    """Scaled scores ``[B, H, S, T]`` in the accumulation type, hidden entries minus infinity."""
    dtype = accumulation_dtype(q.dtype)
    scores = torch.einsum("bshd,bthd->bhst", q.to(dtype), _per_query_head(k, q).to(dtype)) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores


def _per_query_head(kv: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return kv.repeat_interleave(q.shape[2] // kv.shape[2], dim=2)


def _per_kv_head(grad: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """Sum the query heads that shared a key/value head: ``[B, T, H, D]`` to ``[B, T, G, D]``."""
    return grad.unflatten(2, (kv.shape[2], -1)).sum(3).to(kv.dtype)


def _width(q: torch.Tensor, v: torch.Tensor) -> int:
    """Common width of all operands; CUDA's flash attention wants a multiple of 8."""
    width = max(q.shape[-1], v.shape[-1])
    return width if q.device.type == "cpu" else -(-width // 8) * 8


def _pad(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Rows of that width, contiguous: the operators read past rows that are not."""
    missing = width - tensor.shape[-1]
    if missing:
        return torch.nn.functional.pad(tensor, (0, missing))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _fold(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Gradients:
    """q, k, v as ``[B * H/G, G, S or T, max(D, V)]``, without a copy where B is 1."""
    width, repeat = _width(q, v), q.shape[2] // k.shape[2]
    k, v = (
        _pad(kv, width).transpose(1, 2).unsqueeze(1).expand(-1, repeat, -1, -1, -1).flatten(0, 1)
        for kv in (k, v)
    )
    return _fold_queries(_pad(q, width), k.shape[1]), k, v


def _fold_queries(q: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """``[B, S, G * R, D]`` to ``[B * R, G, S, D]``: query ``r`` of every group side by side."""
    return q.unflatten(2, (kv_heads, -1)).permute(0, 3, 2, 1, 4).flatten(0, 1)


def _unfold(folded: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """``[B * R, G, S, D]`` back to ``[B, S, G * R, D]``."""
    return folded.unflatten(0, (q.shape[0], -1)).permute(0, 3, 2, 1, 4).flatten(2, 3)


def _sum_groups(grad: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """Sum over the queries of a group: ``[B * R, G, T, D]`` to ``[B, T, G, D or V]``."""
    summed = grad.unflatten(0, (kv.shape[0], -1)).sum(1)
    return summed.transpose(1, 2)[..., : kv.shape[-1]]
