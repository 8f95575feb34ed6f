"""Packed (THD) index kernels of Transformer Engine's compiled extension, in torch.

A packed tensor is [t, h, d] or, for keys and values together, [2, t, h, d]; ``cu_seqlens`` (int32,
[b + 1]) bound its sequences; padded rows count as rows. An LSE is [h, t] where packed, else
[b, h, s]. Each sequence of a rank consists of two chunks of equal length.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def _spans(cu_seqlens: Tensor) -> list[tuple[int, int]]:
    if not isinstance(cu_seqlens, Tensor):  # as the binding of the real kernel
        raise TypeError(f"incompatible function arguments: cu_seqlens is {cu_seqlens!r}")
    bounds = cu_seqlens.tolist()
    return list(itertools.pairwise(bounds))


def _half_rows(cu_seqlens: Tensor, half: int) -> Tensor:
    """Row numbers of the first or second half of every sequence."""
    parts = [
        torch.arange(start + half * (end - start) // 2, start + (half + 1) * (end - start) // 2)
        for start, end in _spans(cu_seqlens)
    ]
    return torch.cat(parts)


def thd_get_partitioned_indices(cu_seqlens: Tensor, total: int, size: int, rank: int) -> Tensor:
    """Return the rows that a rank of a zigzag partition holds, int32."""
    parts = []
    for start, end in _spans(cu_seqlens):
        chunk = (end - start) // (2 * size)
        for number in (rank, 2 * size - 1 - rank):
            parts.append(torch.arange(start + number * chunk, start + (number + 1) * chunk))
    rows = torch.cat(parts).to(torch.int32)
    if rows.numel() < total // size:  # the kernel writes as many as it is asked for
        rows = torch.nn.functional.pad(rows, (0, total // size - rows.numel()))
    return rows[: total // size]


def _order(cu_seqlens: Tensor, size: int, total: int) -> Tensor:
    ranks = [thd_get_partitioned_indices(cu_seqlens, total, size, rank) for rank in range(size)]
    return torch.cat(ranks).long()


def thd_sequence_order_to_cp_rank_order(
    x: Tensor, cu_seqlens: Tensor, size: int, total: int
) -> Tensor:
    """Reorder rows from sequence order to the ranks' order."""
    return x[_order(cu_seqlens, size, total)].contiguous()


def thd_cp_rank_order_to_sequence_order(
    x: Tensor, cu_seqlens: Tensor, size: int, total: int
) -> Tensor:
    """Undo `thd_sequence_order_to_cp_rank_order`."""
    out = torch.empty_like(x)
    out[_order(cu_seqlens, size, total)] = x
    return out


def thd_read_half_tensor(x: Tensor, cu_seqlens: Tensor, half: int) -> Tensor:
    """Return the first (0) or second (1) half of every sequence."""
    axis = x.dim() - 3
    shape = list(x.shape)
    shape[axis] //= 2
    out = x.new_zeros(shape)
    rows = _half_rows(cu_seqlens, half)
    out.narrow(axis, 0, rows.numel()).copy_(x.index_select(axis, rows))
    return out


def _lse_slices(cu_seqlens: Tensor, half_only: bool) -> list[tuple[int, int, int, int]]:
    """Per sequence: start in the whole, first column, start in the half, number of rows."""
    slices, taken = [], 0
    for start, end in _spans(cu_seqlens):
        length = (end - start) // 2 if half_only else end - start
        slices.append((start, end - start - length, taken, length))
        taken += length
    return slices


def _lse_views(
    whole: Tensor, part: Tensor, cu_seqlens: Tensor, packed: bool, half_only: bool
) -> list[tuple[Tensor, Tensor]]:
    """Matching pieces [h, length] of an LSE and of one step's LSE."""
    views = []
    for sequence, (start, skip, taken, length) in enumerate(_lse_slices(cu_seqlens, half_only)):
        if packed:
            first = whole[:, start + skip : start + skip + length]
            views.append((first, part[:, taken : taken + length]))
        else:
            first = whole[sequence, :, skip : skip + length]
            views.append((first, part[sequence, :, :length]))
    return views


def thd_second_half_lse_correction(
    lse: Tensor, step: Tensor, cu_seqlens: Tensor, packed: bool
) -> None:
    """Merge a step's LSE into the second half of every sequence's LSE."""
    for whole, part in _lse_views(lse, step, cu_seqlens, packed, True):
        whole.copy_(torch.logaddexp(whole, part))


def thd_read_second_half_lse(lse: Tensor, cu_seqlens: Tensor, packed: bool, length: int) -> Tensor:
    """Return the LSE of the second half of every sequence."""
    shape = (lse.shape[0], length) if packed else (*lse.shape[:2], length)
    half = lse.new_zeros(shape)
    for whole, part in _lse_views(lse, half, cu_seqlens, packed, True):
        part.copy_(whole)
    return half


def thd_out_correction(out: Tensor, step: Tensor, *rest: Tensor | bool) -> None:
    """Merge one step's output into the accumulated output, in place.

    Up to Transformer Engine 2.19 the arguments after ``step`` are the LSE, the step's LSE,
    ``cu_seqlens``, whether only second halves are merged, and whether LSEs are packed, and the
    accumulated output is a sum of scaled parts; 2.20.2 puts the LSE before the merge first, by
    which the accumulated output is scaled.
    """
    old = rest[0] if len(rest) == 6 else None
    lse, lse_step, cu_seqlens, half_only, packed = rest[-5:]
    merged = _lse_views(lse, lse_step, cu_seqlens, packed, half_only)
    before = _lse_views(old, lse_step, cu_seqlens, packed, half_only) if old is not None else None
    for index, (start, skip, taken, length) in enumerate(_lse_slices(cu_seqlens, half_only)):
        whole, part = merged[index]
        rows = out[start + skip : start + skip + length]
        if before is not None:
            rows.mul_(_scale(before[index][0], whole, rows))
        rows.add_(step[taken : taken + length].reshape(rows.shape) * _scale(part, whole, rows))


def _scale(part: Tensor, whole: Tensor, rows: Tensor) -> Tensor:
    # Both are -inf in rows of padding.
    factor = torch.exp(part - whole).nan_to_num(0.0)
    return factor.t().unsqueeze(-1).to(rows.dtype)


def thd_grad_correction(
    grad: Tensor, step: Tensor, cu_seqlens: Tensor, first: str, second: str
) -> None:
    """Put one step's gradient into the whole: ``add``, ``copy``, ``zero`` or ``none`` per half."""
    axis = grad.dim() - 3
    whole = "none" not in (first, second)
    taken = 0
    for start, end in _spans(cu_seqlens):
        middle = (start + end) // 2
        for span, action in (((start, middle), first), ((middle, end), second)):
            if action == "none":
                continue
            length = span[1] - span[0]
            source = step.narrow(axis, span[0] if whole else taken, length)
            _apply(grad.narrow(axis, span[0], length), source, action)
        taken += (end - start) // 2


def _apply(target: Tensor, source: Tensor, action: str) -> None:
    if action == "add":
        target.add_(source)
    elif action == "copy":
        target.copy_(source)
    else:
        target.zero_()


def thd_copy_valid_tokens_from_per_split_to_rank_local(
    out: Tensor, step: Tensor, padded: Tensor, valid: Tensor
) -> None:
    """Copy the rows of every sequence that are not padding."""
    lengths = (valid[1:] - valid[:-1]).tolist()
    for (start, _), length in zip(_spans(padded), lengths, strict=True):
        out[start : start + length].copy_(step[start : start + length])


def convert_thd_to_bshd(x: Tensor, cu_seqlens: Tensor, batch: int, longest: int) -> Tensor:
    """Lay sequences out as [b, s, h, d], zeros behind each."""
    out = x.new_zeros(batch, longest, *x.shape[1:])
    for index, (start, end) in enumerate(_spans(cu_seqlens)):
        out[index, : end - start] = x[start:end]
    return out


def convert_bshd_to_thd(x: Tensor, cu_seqlens: Tensor, total: int) -> Tensor:
    """Undo `convert_thd_to_bshd`."""
    out = x.new_zeros(total, *x.shape[2:])
    for index, (start, end) in enumerate(_spans(cu_seqlens)):
        out[start:end] = x[index, : end - start]
    return out
