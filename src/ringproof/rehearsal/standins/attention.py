"""Local fused attention in torch, in the place of Transformer Engine's cuDNN kernels.

The stand-ins are bound by the names of upstream's own parameters, so that one pair serves every
release. The backward pass uses the output and the LSE that it is handed, as cuDNN's does: a context
parallel implementation that merges them wrongly gets wrong gradients here, too.

Letters: B sequences, S rows of queries, T rows of keys, H heads, G heads of keys and values.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ringproof.rehearsal.standins.kernels import refuse

Arguments = Mapping[str, Any]
MASKS = frozenset(
    {"no_mask", "padding", "causal", "padding_causal", "causal_bottom_right",
     "padding_causal_bottom_right"}
)  # fmt: skip
UNSUPPORTED = (
    "return_max_logit", "attn_bias", "softmax_offset", "s_quantizer", "o_quantizer", "dp_quantizer",
    "dqkv_quantizer", "page_table_k", "page_table_v",
)  # fmt: skip


@dataclass(frozen=True)
class Span:
    """Where one sequence is: its slot in a batch, or its rows in a packed tensor.

    Attributes:
        start: First row in a packed tensor, 0 otherwise.
        length: Rows that are not padding.
    """

    index: int
    start: int
    length: int


def bound(original: Callable[..., Any], stand_in: Callable[[Arguments], Any]) -> Callable[..., Any]:
    """Return ``stand_in`` behind the signature of ``original``.

    Raises:
        TypeError: On a call that does not fit upstream's own signature.
    """
    signature = inspect.signature(original)

    @functools.wraps(original, assigned=("__name__", "__qualname__"), updated=())
    def call(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named)
        given.apply_defaults()
        return stand_in(MappingProxyType(given.arguments))

    return call


def fused_attn_fwd(given: Arguments) -> tuple[Tensor, list[Tensor]]:
    """Return the output, and the LSE with a state of the generator.

    The LSE is [B, H, S, 1], or [t, H, 1] for packed queries; rows of padding are 0 in both.
    """
    _refuse_unsupported("fused_attn_fwd", given)
    q, k, v = given["q"], given["k"], given["v"]
    q_format, kv_format = _formats(given["qkv_layout"])
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    lse = _empty_lse(given, q, q_format)
    for queries, keys in _sequences(given, q, k, q_format, kv_format):
        if queries.length == 0 or keys.length == 0:
            continue
        scores, values = _scores(given, q, k, v, queries, keys)
        part = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - part[..., None]).nan_to_num(0.0)
        mixed = torch.einsum("hst,htd->shd", weights, values)
        _rows(out, queries, q_format).copy_(mixed)
        _lse_rows(lse, queries, q_format).copy_(part)
    state = torch.zeros(2, dtype=torch.int64)
    return out, [lse.unsqueeze(-1), state]


def fused_attn_bwd(given: Arguments) -> list[Tensor | None]:
    """Return the gradients of queries, keys and values; none of a bias or an offset."""
    _refuse_unsupported("fused_attn_bwd", given)
    q, k, v, o, d_o = (given[name] for name in ("q", "k", "v", "o", "d_o"))
    q_format, kv_format = _formats(given["qkv_layout"])
    d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    lse = given["aux_ctx_tensors"][0].squeeze(-1)
    heads, groups = q.shape[-2], k.shape[-2]
    scale = _scale(given)
    for queries, keys in _sequences(given, q, k, q_format, kv_format):
        if queries.length == 0 or keys.length == 0:
            continue
        scores, values = _scores(given, q, k, v, queries, keys)
        weights = torch.exp(scores - _lse_rows(lse, queries, q_format)[..., None]).nan_to_num(0.0)
        incoming = _rows(d_o, queries, q_format).to(weights.dtype)
        outputs = _rows(o, queries, q_format).to(weights.dtype)
        inner = (incoming * outputs).sum(-1).t()[..., None]
        d_weights = torch.einsum("shd,htd->hst", incoming, values)
        d_scores = weights * (d_weights - inner) * scale
        query_rows = _rows(q, queries, q_format).to(weights.dtype)
        key_rows = _repeated(_rows(k, keys, kv_format), heads).to(weights.dtype)
        _rows(d_q, queries, q_format).copy_(torch.einsum("hst,thd->shd", d_scores, key_rows))
        d_key = torch.einsum("hst,shd->thd", d_scores, query_rows)
        d_value = torch.einsum("hst,shd->thd", weights, incoming)
        _rows(d_k, keys, kv_format).copy_(_summed(d_key, groups))
        _rows(d_v, keys, kv_format).copy_(_summed(d_value, groups))
    return [d_q, d_k, d_v, None, None]


def _refuse_unsupported(symbol: str, given: Arguments) -> None:
    """Refuse every argument that would change the result and is not computed here."""
    mask, layout = given["attn_mask_type"], given["qkv_layout"]
    kind, softmax = given.get("attn_bias_type"), given.get("softmax_type", "vanilla")
    q_format, _ = _formats(layout)
    refuse(
        symbol,
        dropout=given["dropout"],
        attn_bias_type=None if kind == "no_bias" else kind,
        softmax_type=None if softmax == "vanilla" else softmax,
        attn_mask_type=None if mask in MASKS else mask,
        **{name: given.get(name) for name in UNSUPPORTED},
        **{
            name: f"{given[name]} of {layout}"
            for name in ("o_format", "do_format")
            if given.get(name) not in (None, q_format)
        },
    )
    if q_format == "thd" and "padding" not in mask:
        refuse(symbol, attn_mask_type=f"{mask} of {layout}")
    heads, groups = given["q"].shape[-2], given["k"].shape[-2]
    if heads % groups:
        refuse(symbol, heads=f"{heads} of queries, {groups} of keys")


def _formats(layout: str) -> tuple[str, str]:
    """Return the formats of queries and of keys and values in a layout.

    The three tensors come apart, also where they are views of one (``sbh3d``, ``bshd_bs2hd``).
    """
    parts = [re.sub(r"\d", "", part) for part in layout.removeprefix("paged_kv_").split("_")]
    if not set(parts) <= {"sbhd", "bshd", "thd"} or layout.startswith("paged"):
        refuse("fused_attn_fwd", qkv_layout=layout)
    return parts[0], parts[-1]


def _scale(given: Arguments) -> float:
    scale = given["attn_scale"]
    return float(given["q"].shape[-1] ** -0.5 if scale is None else scale)


def _sequences(
    given: Arguments, q: Tensor, k: Tensor, q_format: str, kv_format: str
) -> Iterator[tuple[Span, Span]]:
    padded = "padding" in given["attn_mask_type"]
    queries = _spans(given, "q", q, q_format, padded)
    keys = _spans(given, "kv", k, kv_format, padded)
    yield from zip(queries, keys, strict=True)


def _spans(given: Arguments, side: str, x: Tensor, form: str, padded: bool) -> list[Span]:
    if form != "thd" and not padded:
        batch, length = (x.shape[0], x.shape[1]) if form == "bshd" else (x.shape[1], x.shape[0])
        return [Span(index, 0, length) for index in range(batch)]
    bounds = given[f"cu_seqlens_{side}"].tolist()
    longest = max((end - start for start, end in itertools.pairwise(bounds)), default=0)
    if longest > given[f"max_seqlen_{side}"]:
        refuse("fused_attn_fwd", **{f"max_seqlen_{side}": given[f"max_seqlen_{side}"] or "0"})
    starts = bounds
    if form == "thd" and given.get(f"cu_seqlens_{side}_padded") is not None:
        starts = given[f"cu_seqlens_{side}_padded"].tolist()
    return [
        Span(index, starts[index] if form == "thd" else 0, bounds[index + 1] - bounds[index])
        for index in range(len(bounds) - 1)
    ]


def _rows(x: Tensor, span: Span, form: str) -> Tensor:
    """The rows [s, h, d] of one sequence, as a view."""
    if form == "thd":
        return x[span.start : span.start + span.length]
    return x[span.index, : span.length] if form == "bshd" else x[: span.length, span.index]


def _empty_lse(given: Arguments, q: Tensor, form: str) -> Tensor:
    dtype = torch.promote_types(q.dtype, torch.float32)
    if form == "thd":
        return q.new_zeros(q.shape[:2], dtype=dtype)
    batch, length = (q.shape[0], q.shape[1]) if form == "bshd" else (q.shape[1], q.shape[0])
    return q.new_zeros(batch, q.shape[-2], length, dtype=dtype)


def _lse_rows(lse: Tensor, span: Span, form: str) -> Tensor:
    """The LSE [H, S] of one sequence, as a view."""
    if form == "thd":
        return lse[span.start : span.start + span.length].t()
    return lse[span.index, :, : span.length]


def _repeated(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.shape[-2], -2)


def _summed(x: Tensor, groups: int) -> Tensor:
    return x.reshape(x.shape[0], groups, -1, x.shape[-1]).sum(2)


def _scores(
    given: Arguments, q: Tensor, k: Tensor, v: Tensor, queries: Span, keys: Span
) -> tuple[Tensor, Tensor]:
    """Masked scores [H, S, T] and values [H, T, D] of one sequence, in at least float32."""
    q_format, kv_format = _formats(given["qkv_layout"])
    dtype = torch.promote_types(q.dtype, torch.float32)
    heads = q.shape[-2]
    query = _rows(q, queries, q_format).to(dtype)
    key = _repeated(_rows(k, keys, kv_format), heads).to(dtype)
    value = _repeated(_rows(v, keys, kv_format), heads).to(dtype)
    scores = torch.einsum("shd,thd->hst", query, key) * _scale(given)
    allowed = _allowed(given, queries.length, keys.length)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return scores, value.transpose(0, 1)


def _allowed(given: Arguments, rows: int, columns: int) -> Tensor | None:
    """Which keys [S, T] each query sees; ``None`` for all."""
    mask = given["attn_mask_type"]
    left, right = given.get("window_size") or (-1, -1)
    bottom_right = given.get("bottom_right_diagonal")
    if bottom_right is None:
        bottom_right = "bottom_right" in mask
    if "causal" in mask:
        right = 0 if right < 0 else min(right, 0)
    if left < 0 and right < 0:
        return None
    shift = columns - rows if bottom_right else 0
    distance = torch.arange(columns)[None] - torch.arange(rows)[:, None] - shift
    allowed = torch.ones(rows, columns, dtype=torch.bool)
    if right >= 0:
        allowed &= distance <= right
    if left >= 0:
        allowed &= distance >= -left
    return allowed
