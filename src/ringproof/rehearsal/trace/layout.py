"""Where a rank is in the layout of ranks, and with which ranks it shares a microbatch."""

from __future__ import annotations

from typing import Any

import torch

from ringproof.rehearsal.protocol.trace import Place


def sharing(packed: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
    """Return the ranks that share a microbatch, and the borders and layout of its sequences."""
    from megatron.core import parallel_state as state

    group = getattr(packed, "cp_group", None) or state.get_context_parallel_group()
    tokens = getattr(packed, "cu_seqlens_q", None)
    borders = getattr(packed, "cu_seqlens_q_padded", None)
    both = (tokens if borders is None else borders, tokens)
    ends = [() if one is None else tuple(map(int, one.reshape(-1))) for one in both]
    layout = getattr(packed, "cp_partition_mode", None) or ""
    return tuple(torch.distributed.get_process_group_ranks(group)), ends[0], ends[1], layout


def place_in(model: Any) -> Place:
    """Where this rank is, after upstream has made its groups."""
    from megatron.core import parallel_state as state

    config = getattr(model, "config", None)
    experts = state.get_expert_tensor_and_model_parallel_group()
    return Place(
        tensor=state.get_tensor_model_parallel_rank(),
        context=state.get_context_parallel_rank(),
        data=state.get_data_parallel_rank(),
        pipeline=state.get_pipeline_model_parallel_rank(),
        sizes=(
            state.get_tensor_model_parallel_world_size(),
            state.get_context_parallel_world_size(),
            state.get_data_parallel_world_size(),
            state.get_pipeline_model_parallel_world_size(),
        ),
        sequence_parallel=bool(getattr(config, "sequence_parallel", False)),
        expert_tensor=state.get_expert_tensor_parallel_rank(),
        experts=tuple(torch.distributed.get_process_group_ranks(experts)),
    )
