"""Transformer Engine's own context parallel attention on cases of the cards, in every rank.

Called by `SessionServers.call`. Each case runs forward and backward through
Transformer Engine's ``DotProductAttention`` and is compared with dense attention in float64; what
upstream raises is reported with the function of Transformer Engine that raised it. All ranks of a
case behave alike, so that one call can run many cases.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

ENGINE = "transformer_engine.pytorch.attention.dot_product_attention"
WIDTH = 8
SENT_SHARE = {
    "all_to_all_single": True,
    "all_gather_into_tensor": False,
    "reduce_scatter_tensor": True,
}
"""Collectives: whether each other rank gets a share of the input, or all of it."""
Attention = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """One attention call.

    Attributes:
        comm: ``cp_comm_type``.
        groups: Groups that are handed over: ``flat``, ``list of one``, ``levels``, ``levels of
            one`` (the first level has one rank), ``three levels``; or the levels with p2p first:
            ``swapped alone``, ``swapped levels`` (with the ranks in that order), ``swapped
            everywhere`` (with the ranks and the data in that order).
        inner: Ranks of the first level.
        padded: Sequence lengths with padding; empty for none.
        says_padded: ``pad_between_seqs``, only used for packed batches; ``None`` leaves it to
            Transformer Engine.
        packed: Whether the layout is ``thd``.
        window: Keys to the left that a query sees; -1 for all.
        cut: ``zigzag`` or ``contiguous``.
        direct: Whether ``attn_forward_func_with_cp`` is called without ``DotProductAttention``.
    """

    comm: str
    groups: str = "flat"
    inner: int = 2
    heads: int = 8
    kv_heads: int = 4
    lengths: tuple[int, ...] = (64,)
    padded: tuple[int, ...] = ()
    says_padded: bool | None = True
    packed: bool = False
    causal: bool = True
    window: int = -1
    cut: str = "zigzag"
    dtype: str = "float64"
    direct: bool = False

    @property
    def slots(self) -> tuple[int, ...]:
        """Rows of each sequence, padding included."""
        return self.padded or self.lengths


def attend(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run cases one after another on the whole world.

    Returns:
        For each: ``error``, the largest difference of the output and the three gradients from dense
        attention, or ``raised`` and ``place``, what was raised in which function; ``live``, the
        key and value buffers of the ring that exist after each of its forward steps; and ``sent``,
        the bytes that this rank sent to others ``forward`` and ``backward``.
    """
    found = [observed(_case(case)) for case in cases]
    dist.barrier()  # the first rank serves the store: it must not end before the others
    return found


def attend_unequally(case: dict[str, Any]) -> dict[str, Any]:
    """Run one case in which ranks behave differently; see `attend`."""
    return observed(_case(case))


def _case(given: dict[str, Any]) -> Case:
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return Case(**{**given, **lists})


def observed(case: Case) -> dict[str, Any]:
    """Run one case; see `attend`."""
    found: dict[str, Any] = {"error": None, "raised": "", "place": ""}
    found |= {"live": [], "sent": {"forward": 0, "backward": 0}}
    try:
        with _counted(found["live"], found["sent"]):
            run = functools.partial(_upstream, case)
            return {**found, "error": difference(case, run, _order(case))}
    except Exception as raised:
        return {**found, "raised": f"{type(raised).__name__}: {raised}", "place": _place(raised)}


def _place(error: BaseException) -> str:
    """The innermost function of Transformer Engine in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    found = [frame.name for frame in frames if "/transformer_engine/" in frame.filename]
    return found[-1] if found else ""


def _phase() -> str:
    """Whether autograd runs."""
    return "forward" if torch._C._current_graph_task_id() == -1 else "backward"


@contextmanager
def _counted(live: list[int], sent: dict[str, int]) -> Iterator[None]:
    """Count the bytes that attention sends to other ranks, and the buffers of its ring.

    Args:
        live: Gets the number of distinct buffers that are alive at each forward exchange.
    """
    module = sys.modules[f"{ENGINE}.context_parallel"]
    exchange = module.flash_attn_p2p_communicate
    signature = inspect.signature(exchange)
    seen: dict[int, weakref.ref[torch.Tensor]] = {}

    def collective(name: str) -> Callable[..., Any]:
        original = getattr(dist, name)

        def call(output: Any, given: Any, *arguments: Any, **named: Any) -> Any:
            ranks = dist.get_world_size(named.get("group"))
            sent[_phase()] += given.nbytes * (ranks - 1) // (ranks if SENT_SHARE[name] else 1)
            return original(output, given, *arguments, **named)

        return call

    def ring(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named).arguments
        sent[_phase()] += given["send_tensor"].nbytes
        if _phase() == "forward":
            for name in ("send_tensor", "recv_tensor"):
                seen[id(given[name])] = weakref.ref(given[name])
            live.append(sum(buffer() is not None for buffer in seen.values()))
        return exchange(*arguments, **named)

    collectives = {name: collective(name) for name in SENT_SHARE}
    with (
        patch.multiple(dist, **collectives),
        patch.multiple(module, flash_attn_p2p_communicate=ring),
    ):
        yield


def difference(case: Case, attention: Attention, ranks: Sequence[int] | None = None) -> float:
    """Largest difference of output and gradients from dense attention, over rows without padding.

    Args:
        attention: Takes this rank's queries, keys and values [rows, heads, width], and returns the
            output in any shape.
        ranks: The ranks that share the sequence, in order; all of them unless given. Several sets
            of ranks may compute the same at once.

    Returns:
        The same number on every rank of the world.
    """
    ranks = range(dist.get_world_size()) if ranks is None else ranks
    rows, real = rows_of(case, ranks), real_rows(case)
    generator, dtype = torch.Generator().manual_seed(7), getattr(torch, case.dtype)
    shapes = {"q": case.heads, "k": case.kv_heads, "v": case.kv_heads}
    whole = {
        name: torch.randn(sum(case.slots), heads, WIDTH, dtype=dtype, generator=generator)
        for name, heads in shapes.items()
    }
    seed = torch.randn(whole["q"].shape, dtype=dtype, generator=generator)
    seed[~real] = 0.0
    local = {name: value[rows].clone().requires_grad_() for name, value in whole.items()}
    out = attention(*local.values())
    out.backward(seed[rows].reshape(out.shape))
    dense = {name: value.clone().requires_grad_() for name, value in whole.items()}
    expected = torch.cat([*_dense(case, dense)])
    expected.backward(seed)
    mine = real[rows]
    pairs = [(out.reshape(-1, case.heads, WIDTH), expected[rows])]
    pairs += [(local[name].grad, dense[name].grad[rows]) for name in local]
    worst = torch.stack([(ours - right)[mine].abs().max() for ours, right in pairs]).max()
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


def rows_of(case: Case, ranks: Sequence[int]) -> torch.Tensor:
    """The rows of the whole batch that this rank holds when ``ranks`` share it."""
    place, world = [*ranks].index(dist.get_rank()), len(ranks)
    chunks = (place, 2 * world - 1 - place) if case.cut == "zigzag" else (2 * place, 2 * place + 1)
    found = []
    for start, slot in zip(_starts(case.slots), case.slots, strict=False):
        size = slot // (2 * world)
        found += [range(start + c * size, start + (c + 1) * size) for c in chunks]
    return torch.tensor([*itertools.chain(*found)])


def real_rows(case: Case) -> torch.Tensor:
    """Return which rows of the whole batch are not padding."""
    real = torch.zeros(sum(case.slots), dtype=torch.bool)
    for start, length in zip(_starts(case.slots), case.lengths, strict=False):
        real[start : start + length] = True
    return real


def _starts(lengths: tuple[int, ...]) -> list[int]:
    return [0, *itertools.accumulate(lengths)]


def _upstream(case: Case, *local: torch.Tensor) -> torch.Tensor:
    from transformer_engine.pytorch import DotProductAttention

    groups, ranks = _groups(case)
    if case.direct:
        return _directly(case, groups, ranks, *(value.unsqueeze(1) for value in local))
    attention = DotProductAttention(
        case.heads,
        WIDTH,
        num_gqa_groups=case.kv_heads,
        qkv_format="thd" if case.packed else "sbhd",
        attn_mask_type=_mask(case),
        attention_dropout=0.0,
        layer_number=1,
        window_size=_window(case),
    )
    attention.set_context_parallel_group(groups, ranks, torch.cuda.Stream(), case.comm)
    if not case.packed:
        return attention(*(value.unsqueeze(1) for value in local))
    bounds = torch.tensor(_starts(case.lengths), dtype=torch.int32)
    padded = torch.tensor(_starts(case.slots), dtype=torch.int32)
    return attention(
        *local,
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        cu_seqlens_q_padded=padded,
        cu_seqlens_kv_padded=padded,
        max_seqlen_q=max(case.slots),
        max_seqlen_kv=max(case.slots),
        pad_between_seqs=case.says_padded if case.padded else False,
    )


def _directly(case: Case, groups: Any, ranks: list[int], *local: torch.Tensor) -> torch.Tensor:
    """Call upstream's context parallel function without its choice of a backend."""
    bounds = torch.tensor(_starts(case.lengths), dtype=torch.int32)
    longest = max(case.lengths)
    found = sys.modules[f"{ENGINE}.context_parallel"].attn_forward_func_with_cp(
        True, *local, bounds, bounds, longest, longest, None, None, 0.0, groups, ranks,
        torch.cuda.Stream(), case.comm, qkv_format="sbhd", attn_mask_type=_mask(case),
        use_fused_attention=True, window_size=_window(case),
    )  # fmt: skip
    assert isinstance(found, torch.Tensor)
    return found


def _mask(case: Case) -> str:
    return ("padding_" if case.packed else "") + "causal" if case.causal else "no_mask"


def _window(case: Case) -> tuple[int, int]:
    return case.window, 0 if case.causal else -1


def _groups(case: Case) -> tuple[Any, list[int]]:
    """The groups to hand over, and the ranks in the order in which they hold the sequence."""
    rank, world, inner = dist.get_rank(), dist.get_world_size(), case.inner
    ranks = list(range(world))
    if case.groups == "flat":
        return dist.group.WORLD, ranks
    if case.groups == "list of one":
        return [dist.group.WORLD], ranks
    if case.groups == "three levels":
        return [dist.group.WORLD] * 3, ranks
    if case.groups == "levels of one":
        alone = [dist.new_group([member]) for member in ranks]
        return [alone[rank], dist.group.WORLD], ranks
    a2a = [dist.new_group(ranks[start : start + inner]) for start in range(0, world, inner)]
    p2p = [dist.new_group(ranks[start::inner]) for start in range(inner)]
    levels = [a2a[rank // inner], p2p[rank % inner]]
    if case.groups == "levels":
        return levels, ranks
    return levels[::-1], ranks if case.groups == "swapped alone" else _swapped_order(inner)


def _order(case: Case) -> list[int]:
    """The ranks in the order in which they hold the sequence."""
    world = dist.get_world_size()
    return _swapped_order(case.inner) if case.groups == "swapped everywhere" else [*range(world)]


def _swapped_order(inner: int) -> list[int]:
    """Ranks in an order in which the members of the second level are consecutive."""
    world = dist.get_world_size()
    return [rank for start in range(inner) for rank in range(start, world, inner)]


def _dense(case: Case, whole: dict[str, torch.Tensor]) -> Iterator[torch.Tensor]:
    """Dense attention [slot, heads, width] of each sequence; rows of padding are 0."""
    for start, slot, length in zip(_starts(case.slots), case.slots, case.lengths, strict=False):
        q, k, v = (value[start : start + length] for value in whole.values())
        k, v = (x.repeat_interleave(case.heads // case.kv_heads, 1) for x in (k, v))
        scores = torch.einsum("shd,thd->hst", q, k) * WIDTH**-0.5
        behind = torch.arange(length)[:, None] - torch.arange(length)[None]
        hidden = (behind < 0) if case.causal else torch.zeros_like(behind, dtype=torch.bool)
        if case.window >= 0:
            hidden |= behind > case.window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out = torch.einsum("hst,thd->shd", weights, v)
        yield torch.cat([out, out.new_zeros(slot - length, *out.shape[1:])])
