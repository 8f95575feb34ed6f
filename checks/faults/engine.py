"""Defects planted in Transformer Engine's context parallel attention; each function plants one."""

from __future__ import annotations

from typing import Any

from checks.faults.planting import Run, planted, remembering

ATTENTION = "transformer_engine.pytorch.attention.dot_product_attention"
CP = f"{ATTENTION}.context_parallel"
MODULE = f"{ATTENTION}.dot_product_attention:DotProductAttention"
Given = dict[str, Any]


@planted(f"{CP}:flash_attn_p2p_communicate")
@remembering
def ring_step_lost(given: Given, run: Run, kept: Given) -> Any:
    """The second exchange of each ring is not sent: ranks reuse what their buffer holds."""
    kept["calls"] = kept.get("calls", 0) + 1
    if kept["calls"] % 2:
        return run()
    given["recv_tensor"].copy_(given["send_tensor"])
    return []


@planted(f"{CP}:flash_attn_fwd_softmax_lse_correction")
def lse_merge_skipped(given: Given, run: Run) -> None:
    """The LSE of later ring steps is not merged into the LSE of the first."""


@planted(f"{CP}:flash_attn_fwd_incremental_second_half_out_correction")
def second_half_merge_skipped(given: Given, run: Run) -> None:
    """Steps that concern the second half of the queries only do not reach the output."""


@planted(f"{CP}:cp_p2p_fwd_fused_attn")
def diagonal_unmasked(given: Given, run: Run) -> Any:
    """The ring step of a rank's own keys is computed without the causal mask."""
    if given["section"] == "diagonal":
        mask = given["attn_mask_type"].replace("causal", "no_mask")
        given["attn_mask_type"] = mask.replace("padding_no_mask", "padding")
    return run()


@planted(f"{CP}:cp_p2p_bwd_fused_attn")
def key_gradient_lost(given: Given, run: Run) -> Any:
    """The gradients of keys and values of the last ring step of the backward pass are zero."""
    result = run()
    if given["section"] == "diagonal":
        for gradient in result[1:3]:
            gradient.zero_()
    return result


@planted(f"{CP}:reorder_seq_chunks_for_a2a_before_attn")
def chunks_unsorted(given: Given, run: Run) -> Any:
    """After the all-to-all, chunks of the sequence stay in the order of ranks."""
    given["chunk_ids_for_a2a"] = given["chunk_ids_for_a2a"].sort().values
    return run()


@planted(f"{MODULE}.set_context_parallel_group", f"{MODULE}.__init__")
def levels_swapped(given: Given, run: Run) -> Any:
    """Attention gets the groups of a2a and p2p in the wrong order."""
    groups = given["cp_group"]
    given["cp_group"] = groups[::-1] if isinstance(groups, list) else groups
    return run()


@planted(f"{MODULE}.set_context_parallel_group")
def group_kept(given: Given, run: Run) -> None:
    """Only the first group that attention is given counts."""
    if given["cp_group"] is None or given["self"].cp_group is None:
        run()


@planted(f"{MODULE}.forward")
@remembering
def stale_lengths(given: Given, run: Run, before: Given) -> Any:
    """Attention uses the lengths of the packed batch before, as far as they fit."""
    now = {
        name: value
        for name, value in given.items()
        if name.startswith("cu_seqlens") and value is not None
    }
    if now.keys() == before.keys():
        given.update(before)
    before.update(now)
    return run()


@planted(f"{CP}:get_seq_chunk_ids_for_reordering_before_attn")
def gathered_in_rank_order(given: Given, run: Run) -> Any:
    """Keys gathered from all ranks are used in the order of ranks."""
    return run().sort().values
