"""Local fused attention in torch, in the place of Transformer Engine's cuDNN kernels.

The stand-ins are bound by the names of upstream's own parameters, so that one pair serves every
release. The backward pass uses the output and the LSE that it is handed, as cuDNN's does: a context
parallel implementation that merges them wrongly gets wrong gradients here, too.

Letters: B sequences, S rows of queries, T rows of keys, H heads, G heads of keys and values.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ringproof.rehearsal.standins.guard import wrapped
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
class SequencePlace:
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

    def call(given: inspect.BoundArguments, _: Callable[[], Any]) -> Any:
        given.apply_defaults()
        return stand_in(MappingProxyType(given.arguments))

    return wrapped(original, call)


class Call:
    """One call of a kernel, refused if an argument would change the result and is not computed."""

    def __init__(self, symbol: str, given: Arguments) -> None:
        _refuse_unsupported(symbol, given)
        self._given = given
        self.q, self.k, self.v = given["q"], given["k"], given["v"]
        self.q_format, self.kv_format = _formats(given["qkv_layout"])
        self.dtype = torch.promote_types(self.q.dtype, torch.float32)
        scale = given["attn_scale"]
        self.scale = float(self.q.shape[-1] ** -0.5 if scale is None else scale)

    def sequences(self) -> Iterator[tuple[SequencePlace, SequencePlace]]:
        """Yield where the queries and the keys of each sequence are that has both."""
        queries = self._spans("q", self.q, self.q_format)
        keys = self._spans("kv", self.k, self.kv_format)
        yield from (both for both in zip(queries, keys, strict=True) if all(s.length for s in both))

    def _spans(self, side: str, x: Tensor, form: str) -> list[SequencePlace]:
        given, packed = self._given, form == "thd"
        if not packed and "padding" not in given["attn_mask_type"]:
            return [SequencePlace(index, 0, _length(x, form)) for index in range(_batch(x, form))]
        bounds = given[f"cu_seqlens_{side}"].tolist()
        lengths = [end - start for start, end in itertools.pairwise(bounds)]
        if max(lengths, default=0) > given[f"max_seqlen_{side}"]:
            refuse("fused_attn_fwd", **{f"max_seqlen_{side}": given[f"max_seqlen_{side}"] or "0"})
        starts = bounds if packed else [0] * len(bounds)
        if packed and given.get(f"cu_seqlens_{side}_padded") is not None:
            starts = given[f"cu_seqlens_{side}_padded"].tolist()
        return [SequencePlace(index, starts[index], length) for index, length in enumerate(lengths)]

    def queries(self, x: Tensor, span: SequencePlace) -> Tensor:
        """Return the rows [S, H, D] of one sequence of a tensor like the queries."""
        return _rows(x, span, self.q_format).to(self.dtype)

    def keys(self, x: Tensor, span: SequencePlace) -> Tensor:
        """Return the rows [T, H, D] of one sequence of a tensor like the keys, for every head."""
        heads, rows = self.q.shape[-2], _rows(x, span, self.kv_format)
        return rows.repeat_interleave(heads // rows.shape[-2], -2).to(self.dtype)

    def scores(self, queries: SequencePlace, keys: SequencePlace) -> Tensor:
        """Return the masked scores [H, S, T] of one sequence."""
        query, key = self.queries(self.q, queries), self.keys(self.k, keys)
        scores = torch.einsum("shd,thd->hst", query, key) * self.scale
        allowed = _allowed(self._given, queries.length, keys.length)
        return scores if allowed is None else scores.masked_fill(~allowed, float("-inf"))

    def empty_lse(self) -> Tensor:
        """Return an LSE of zeros."""
        return self.q.new_zeros(self.lse_shape(), dtype=self.dtype)

    def lse_shape(self) -> tuple[int, ...]:
        """Return [B, H, S], or [t, H] for packed queries."""
        q, form = self.q, self.q_format
        if form == "thd":
            return tuple(q.shape[:2])
        return _batch(q, form), q.shape[-2], _length(q, form)

    def lse_rows(self, lse: Tensor, span: SequencePlace) -> Tensor:
        """Return the LSE [H, S] of one sequence, as a view."""
        if self.q_format == "thd":
            return lse[span.start : span.start + span.length].t()
        return lse[span.index, :, : span.length]


def fused_attn_fwd(given: Arguments) -> tuple[Tensor, list[Tensor]]:
    """Return the output, and the LSE with a state of the generator.

    The LSE is [B, H, S, 1], or [t, H, 1] for packed queries; rows of padding are 0 in both.
    """
    call = Call("fused_attn_fwd", given)
    out, lse = call.q.new_zeros(*call.q.shape[:-1], call.v.shape[-1]), call.empty_lse()
    for queries, keys in call.sequences():
        scores = call.scores(queries, keys)
        part = torch.logsumexp(scores, -1)
        # A row that sees no key has the LSE -inf: its weights are 0, as cuDNN returns them.
        weights = torch.exp(scores - part[..., None]).nan_to_num(0.0)
        mixed = torch.einsum("hst,thd->shd", weights, call.keys(call.v, keys))
        _rows(out, queries, call.q_format).copy_(mixed)
        call.lse_rows(lse, queries).copy_(part)
    state = torch.zeros(2, dtype=torch.int64)
    return out, [lse.unsqueeze(-1), state]


def fused_attn_bwd(given: Arguments) -> list[Tensor | None]:
    """Return the gradients of queries, keys and values; none of a bias or an offset."""
    call = Call("fused_attn_bwd", given)
    d_q, d_k, d_v = map(torch.zeros_like, (call.q, call.k, call.v))
    lse = given["aux_ctx_tensors"][0].squeeze(-1)
    for queries, keys in call.sequences():
        scores, values = call.scores(queries, keys), call.keys(call.v, keys)
        weights = torch.exp(scores - call.lse_rows(lse, queries)[..., None]).nan_to_num(0.0)
        incoming, outputs = (call.queries(given[name], queries) for name in ("d_o", "o"))
        # The output is that of all ring steps, so that this is right for a part of the keys.
        inner = (incoming * outputs).sum(-1).t()[..., None]
        d_weights = torch.einsum("shd,thd->hst", incoming, values)
        d_scores = weights * (d_weights - inner) * call.scale
        d_query = torch.einsum("hst,thd->shd", d_scores, call.keys(call.k, keys))
        d_key = torch.einsum("hst,shd->thd", d_scores, call.queries(call.q, queries))
        d_value = torch.einsum("hst,shd->thd", weights, incoming)
        _rows(d_q, queries, call.q_format).copy_(d_query)
        for target, found in ((d_k, d_key), (d_v, d_value)):
            rows = _rows(target, keys, call.kv_format)
            rows.copy_(found.unflatten(1, (rows.shape[1], -1)).sum(2))
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


def _batch(x: Tensor, form: str) -> int:
    return x.shape[0] if form == "bshd" else x.shape[1]


def _length(x: Tensor, form: str) -> int:
    return x.shape[1] if form == "bshd" else x.shape[0]


def _rows(x: Tensor, span: SequencePlace, form: str) -> Tensor:
    """The rows [s, h, d] of one sequence, as a view."""
    if form == "thd":
        return x[span.start : span.start + span.length]
    return x[span.index, : span.length] if form == "bshd" else x[: span.length, span.index]


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
