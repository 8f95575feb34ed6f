"""Defects planted in Transformer Engine's context parallel attention; each function plants one."""

from __future__ import annotations

import inspect
from typing import Any

from checks.faults.planting import around, planted, skipped, swap, with_argument

ATTENTION = "transformer_engine.pytorch.attention.dot_product_attention"
CP = f"{ATTENTION}.context_parallel"
MODULE = f"{ATTENTION}.dot_product_attention:DotProductAttention"


def ring_step_lost() -> None:
    """The second exchange of each ring is not sent: ranks reuse what their buffer holds."""

    calls = [0]

    def call(original: Any, *arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] % 2 == 0:
            arguments[3].copy_(arguments[1])
            return []
        return original(*arguments, **named)

    around(f"{CP}:flash_attn_p2p_communicate", call)


def lse_merge_skipped() -> None:
    """The LSE of later ring steps is not merged into the LSE of the first."""
    swap(f"{CP}:flash_attn_fwd_softmax_lse_correction", skipped())


def second_half_merge_skipped() -> None:
    """Steps that concern the second half of the queries only do not reach the output."""
    swap(f"{CP}:flash_attn_fwd_incremental_second_half_out_correction", skipped())


@planted(f"{CP}:cp_p2p_fwd_fused_attn")
def diagonal_unmasked(original: Any, *arguments: Any, **named: Any) -> Any:
    """The ring step of a rank's own keys is computed without the causal mask."""
    if arguments[-1] == "diagonal":
        place = list(inspect.signature(original).parameters).index("attn_mask_type")
        mask = arguments[place].replace("causal", "no_mask").replace("padding_no_mask", "padding")
        arguments = (*arguments[:place], mask, *arguments[place + 1 :])
    return original(*arguments, **named)


@planted(f"{CP}:cp_p2p_bwd_fused_attn")
def key_gradient_lost(original: Any, *arguments: Any, **named: Any) -> Any:
    """The gradients of keys and values of the last ring step of the backward pass are zero."""
    result = original(*arguments, **named)
    if arguments[-1] == "diagonal":
        for gradient in result[1:3]:
            gradient.zero_()
    return result


def chunks_unsorted() -> None:
    """After the all-to-all, chunks of the sequence stay in the order of ranks."""
    swap(
        f"{CP}:reorder_seq_chunks_for_a2a_before_attn",
        with_argument("chunk_ids_for_a2a", lambda ids: ids.sort().values),
    )


def levels_swapped() -> None:
    """Attention gets the groups of a2a and p2p in the wrong order."""
    swap(f"{MODULE}.set_context_parallel_group", with_argument("cp_group", _reversed))
    swap(f"{MODULE}.__init__", with_argument("cp_group", _reversed))


def _reversed(groups: Any) -> Any:
    return groups[::-1] if isinstance(groups, list) else groups


@planted(f"{MODULE}.set_context_parallel_group")
def group_kept(original: Any, module: Any, cp_group: Any, *arguments: Any, **named: Any) -> None:
    """Only the first group that attention is given counts."""
    if cp_group is None or module.cp_group is None:
        original(module, cp_group, *arguments, **named)


def stale_lengths() -> None:
    """Attention uses the lengths of the packed batch before, as far as they fit."""

    before: dict[str, Any] = {}

    def call(original: Any, *arguments: Any, **named: Any) -> Any:
        given = {name: named[name] for name in named if name.startswith("cu_seqlens")}
        if given.keys() == before.keys():
            named.update(before)
        before.update(given)
        return original(*arguments, **named)

    around(f"{MODULE}.forward", call)


def gathered_in_rank_order() -> None:
    """Keys gathered from all ranks are used in the order of ranks."""
    swap(
        f"{CP}:get_seq_chunk_ids_for_reordering_before_attn",
        lambda original: lambda size, device: original(size, device).sort().values,
    )
