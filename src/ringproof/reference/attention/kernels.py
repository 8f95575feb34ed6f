"""Local attention math: output and LSE, and gradients given the output and LSE.

A ring needs both. The backward of a block takes the *global* output and LSE of its rows, which
makes each block's gradients exact summands of the whole. A kernel that cannot give an LSE has
no place here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ringproof.errors import InputError, check_name
from ringproof.reference.attention.merge import accumulation_dtype
from ringproof.reference.attention.names import KERNEL_NAMES

TensorTriple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

SCORES = 1 << 20
"""Scores that the formula holds at a time: 4 MiB in float32, which stay in a processor's cache."""
FEWEST_ROWS = 16
"""Query rows of a block at least, however many keys there are."""


class ReferenceKernel:
    """The formula, written out; any data type, any device.

    It takes :data:`SCORES` scores at a time, a block of query rows after the other, so its memory
    is linear in the rows. Under a causal mask a block of rows leaves out the keys that come after
    its last row. Every kernel has this ``forward`` and ``backward``.
    """

    name = "reference"

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool,
        scale: float,
        hidden: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output ``[B, S, H, V]`` and natural-log LSE ``[B, S, H]`` over this block's keys.

        Args:
            q: ``[B, S, H, D]``.
            k: ``[B, T, G, D]``.
            v: ``[B, T, G, V]``.
            causal: Hide keys that come after the query; ``S`` and ``T`` are then equal.
            hidden: ``[B, S or 1, T]`` bool, further keys that a query does not see. The result of
                a row that sees none is not defined.
        """
        dtype = accumulation_dtype(q.dtype)
        out = torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=dtype, device=q.device)
        for rows, columns in _blocks(q, k, causal=causal):
            scores = _scores(q[:, rows], k[:, columns], scale)
            _hide(scores, rows, causal=causal, hidden=hidden)
            sums = torch.logsumexp(scores, dim=-1)
            weights = scores.sub_(sums.unsqueeze(-1)).exp_()
            values = _per_query_head(v[:, columns], q).to(dtype)
            out[:, rows] = torch.einsum("bhst,bthv->bshv", weights, values).to(q.dtype)
            lse[:, rows] = sums.transpose(1, 2)
        return out, lse

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: TensorTriple,
        out: torch.Tensor,
        lse: torch.Tensor,
        *,
        causal: bool,
        scale: float,
        hidden: torch.Tensor | None = None,
    ) -> TensorTriple:
        """Summands of dq, dk, dv from one block, given the global ``out`` and ``lse`` of its rows.

        ``dS = P * (dP - rowsum(dO * O))``, the flash attention backward (arXiv 2205.14135).
        ``inputs`` are q, k and v of the block.
        """
        q, k, v = inputs
        dtype = accumulation_dtype(q.dtype)
        dq, dk, dv = (torch.zeros(t.shape, dtype=dtype, device=q.device) for t in inputs)
        for rows, columns in _blocks(q, k, causal=causal):
            scores = _scores(q[:, rows], k[:, columns], scale)
            _hide(scores, rows, causal=causal, hidden=hidden)
            weights = scores.sub_(lse[:, rows].transpose(1, 2).unsqueeze(-1)).exp_()
            grad, queries = grad_out[:, rows].to(dtype), q[:, rows].to(dtype)
            keys, values = (_per_query_head(t[:, columns], q).to(dtype) for t in (k, v))
            dv[:, columns] += _per_kv_head(torch.einsum("bhst,bshv->bthv", weights, grad), v)
            row_sum = (grad * out[:, rows].to(dtype)).sum(-1).transpose(1, 2).unsqueeze(-1)
            grad_scores = torch.einsum("bshv,bthv->bhst", grad, values).sub_(row_sum)
            grad_scores.mul_(weights).mul_(scale)
            dq[:, rows] = torch.einsum("bhst,bthd->bshd", grad_scores, keys)
            dk[:, columns] += _per_kv_head(torch.einsum("bhst,bshd->bthd", grad_scores, queries), k)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class FlashKernel:
    """ATen's flash attention, which returns the LSE: CPU (any float) and CUDA (16-bit floats).

    The operators want equal head counts and head dimensions and contiguous rows (the CPU one reads
    out of bounds otherwise), so grouped queries become batch entries that share one key/value head
    by a zero stride, and a narrower ``D`` or ``V`` is padded with zeros: both exact.
    """

    name = "sdpa"

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool,
        scale: float,
        hidden: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`ReferenceKernel`. On a GPU the operator takes no ``hidden``."""
        folded = _fold(q, k, v)
        if q.device.type == "cpu":
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *folded, 0.0, causal, attn_mask=_mask_of(hidden, folded), scale=scale
            )
        else:
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention(
                *folded, 0.0, causal, False, scale=scale
            )[:2]
        return _unfold(out, q)[..., : v.shape[-1]], _unfold(lse.unsqueeze(-1), q).squeeze(-1)

    def backward(
        self,
        grad_out: torch.Tensor,
        inputs: TensorTriple,
        out: torch.Tensor,
        lse: torch.Tensor,
        *,
        causal: bool,
        scale: float,
        hidden: torch.Tensor | None = None,
    ) -> TensorTriple:
        """See :class:`ReferenceKernel`."""
        q, k, v = inputs
        width = common_width(q, v)
        folded = _fold(q, k, v)
        grad = _fold_queries(padded(grad_out, width), k.shape[2])
        result = _fold_queries(padded(out, width), k.shape[2])
        sums = _fold_queries(lse.unsqueeze(-1), k.shape[2]).squeeze(-1)
        if q.device.type == "cpu":
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, *folded, result, sums, 0.0, causal,
                attn_mask=_mask_of(hidden, folded), scale=scale,
            )  # fmt: skip
        else:
            unused = torch.empty(2, dtype=torch.int64, device=q.device)  # RNG state, no dropout
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
                grad, *folded, result, sums.contiguous(), None, None,
                q.shape[1], k.shape[1], 0.0, causal, unused, unused, scale=scale,
            )  # fmt: skip
        dq = _unfold(dq, q)[..., : q.shape[-1]]
        return dq, _sum_groups(dk, k), _sum_groups(dv, v)


AttentionKernel = ReferenceKernel | FlashKernel


def choose_kernel(name: str, q: torch.Tensor, v: torch.Tensor) -> AttentionKernel:
    """The kernel of that name; ``auto`` is flash where it serves these tensors.

    Raises:
        InputError: There is none, or flash attention cannot serve device, data type or width.
    """
    check_name("kernel", name, KERNEL_NAMES)
    obstacle = _flash_obstacle(q, v)
    if name == FlashKernel.name and obstacle:
        raise InputError("kernel", f"{obstacle}; use auto or reference")
    flash = name != ReferenceKernel.name and not obstacle
    return FlashKernel() if flash else ReferenceKernel()


def _flash_obstacle(q: torch.Tensor, v: torch.Tensor) -> str:
    """Why ATen's flash attention cannot serve; empty when it can."""
    if q.device.type == "cpu":
        return ""
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"flash attention on {q.device.type} takes 16-bit floats, not {q.dtype}"
    width = common_width(q, v)
    return f"flash attention takes a width up to 256, not {width}" if width > 256 else ""


def _blocks(q: torch.Tensor, k: torch.Tensor, *, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Query rows, block after block, and the keys that one of them may see."""
    keys = k.shape[1]
    for rows in row_blocks(q.shape[1], q.shape[0] * q.shape[2] * keys):
        yield rows, slice(0, min(rows.stop, keys) if causal else keys)


def row_blocks(rows: int, scores_of_row: int) -> Iterator[slice]:
    """Cut query rows so that a block has at most :data:`SCORES` scores, if that is possible."""
    height = max(FEWEST_ROWS, SCORES // scores_of_row)
    return (slice(start, min(start + height, rows)) for start in range(0, rows, height))


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """Scaled scores ``[B, H, S, T]`` in the accumulation type."""
    dtype = accumulation_dtype(q.dtype)
    scores = torch.einsum("bshd,bthd->bhst", q.to(dtype), _per_query_head(k, q).to(dtype))
    return scores.mul_(scale)


def _hide(scores: torch.Tensor, rows: slice, *, causal: bool, hidden: torch.Tensor | None) -> None:
    """Make the scores of hidden keys minus infinity, of a block of query rows."""
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores.masked_fill_(later.triu(1 + rows.start), -torch.inf)
    if hidden is not None:
        here = hidden if hidden.shape[1] == 1 else hidden[:, rows]
        scores.masked_fill_(here[:, None, :, : scores.shape[-1]], -torch.inf)


def _per_query_head(kv: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return kv.repeat_interleave(q.shape[2] // kv.shape[2], dim=2)


def _per_kv_head(grad: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """Sum the query heads that shared a key/value head: ``[B, T, H, D]`` to ``[B, T, G, D]``."""
    return grad.unflatten(2, (kv.shape[2], -1)).sum(3)


def common_width(q: torch.Tensor, v: torch.Tensor) -> int:
    """Common width of all operands; CUDA's flash attention wants a multiple of 8."""
    width = max(q.shape[-1], v.shape[-1])
    return width if q.device.type == "cpu" else -(-width // 8) * 8


def padded(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Rows of that width, contiguous: the operators read past rows that are not."""
    missing = width - tensor.shape[-1]
    if missing:
        return torch.nn.functional.pad(tensor, (0, missing))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _mask_of(hidden: torch.Tensor | None, folded: TensorTriple) -> torch.Tensor | None:
    """``[B * R, 1, S or 1, T]``, added to the scores: minus infinity where a key is hidden."""
    if hidden is None:
        return None
    mask = torch.zeros(hidden.shape, dtype=folded[0].dtype, device=hidden.device)
    mask = mask.masked_fill_(hidden, -torch.inf)
    return mask.repeat_interleave(len(folded[0]) // len(mask), dim=0)[:, None]


def _fold(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> TensorTriple:
    """q, k, v as ``[B * H/G, G, S or T, max(D, V)]``, without a copy where B is 1."""
    width, repeat = common_width(q, v), q.shape[2] // k.shape[2]
    k, v = (
        padded(kv, width).transpose(1, 2).unsqueeze(1).expand(-1, repeat, -1, -1, -1).flatten(0, 1)
        for kv in (k, v)
    )
    return _fold_queries(padded(q, width), k.shape[1]), k, v


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
