"""The oracle: attention over the whole sequence on one rank, by the definition.

Shares nothing with the kernels, the merge or the step tables: a plain softmax, and autograd for
the gradients. A pack is one such computation for each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ringproof.reference.packing.sequences import PackedSequences


@dataclass(frozen=True)
class DenseResult:
    """Output, LSE and gradients over the whole sequence.

    Args:
        out: ``[B, S, H, V]``; of a pack ``[T, H, V]``.
        lse: ``[B, S, H]``, natural log; of a pack ``[T, H]``.
        dq, dk, dv: In the shapes of q, k and v.
    """

    out: torch.Tensor
    lse: torch.Tensor
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


def dense_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad_out: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
) -> DenseResult:
    """Forward and backward in float64, one key/value head at a time to bound the memory.

    Args:
        q: ``[B, S, H, D]`` of any data type; cast to float64.
        k: ``[B, S, G, D]``.
        v: ``[B, S, G, V]``.
        grad_out: ``[B, S, H, V]``.
    """
    repeat = q.shape[2] // k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    hidden = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
    pieces = []
    for head in range(k.shape[2]):
        heads = slice(head * repeat, (head + 1) * repeat)
        query = q[:, :, heads].detach().double().requires_grad_()
        key = k[:, :, head].detach().double().requires_grad_()
        value = v[:, :, head].detach().double().requires_grad_()
        scores = torch.einsum("bsrd,btd->brst", query, key) * scale
        if causal:
            scores = scores.masked_fill(hidden, -torch.inf)
        out = torch.einsum("brst,btv->bsrv", torch.softmax(scores, dim=-1), value)
        out.backward(grad_out[:, :, heads].double())
        lse = torch.logsumexp(scores.detach(), dim=-1).transpose(1, 2)
        pieces.append((out.detach(), lse, query.grad, key.grad[:, :, None], value.grad[:, :, None]))
    return DenseResult(*(torch.cat(parts, dim=2) for parts in zip(*pieces, strict=True)))


def dense_packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad_out: torch.Tensor,
    *,
    packed: PackedSequences,
    causal: bool,
    scale: float | None = None,
) -> DenseResult:
    """Each sequence of a pack by itself: forward and backward in float64.

    Args:
        q: ``[T, H, D]``, all rows of the pack.
        k: ``[T, G, D]``.
        v: ``[T, G, V]``.
        grad_out: ``[T, H, V]``.

    Returns:
        All rows, without the batch dimension. Rows of padding: zero output, an LSE of minus
        infinity, zero gradients.
    """
    whole = DenseResult(
        out=torch.zeros_like(grad_out, dtype=torch.float64),
        lse=torch.full(q.shape[:2], -torch.inf, dtype=torch.float64, device=q.device),
        dq=torch.zeros_like(q, dtype=torch.float64),
        dk=torch.zeros_like(k, dtype=torch.float64),
        dv=torch.zeros_like(v, dtype=torch.float64),
    )
    for first, length in zip(packed.cu_seqlens_padded, packed.lengths, strict=False):
        rows = slice(first, first + length)
        tensors = (tensor[None, rows] for tensor in (q, k, v, grad_out))
        alone = dense_attention(*tensors, causal=causal, scale=scale)
        for name in ("out", "lse", "dq", "dk", "dv"):
            getattr(whole, name)[rows] = getattr(alone, name)[0]
    return whole
