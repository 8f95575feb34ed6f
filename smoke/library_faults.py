"""Defects planted into megatron-core in ranks, so that the comparison has something to see."""

from __future__ import annotations

import inspect
from typing import Any


def contiguous_shards() -> None:
    """Cut the sequence contiguously instead of into chunks of a zigzag."""
    from megatron.core import parallel_state, utils

    original = utils.get_batch_on_this_cp_rank
    signature = inspect.signature(original)

    def contiguous(*arguments: Any, **named: Any) -> Any:
        batch = signature.bind(*arguments, **named).arguments["batch"]
        size = parallel_state.get_context_parallel_world_size()
        rank = parallel_state.get_context_parallel_rank()
        return {name: value.chunk(size, 1)[rank] for name, value in batch.items()}

    utils.get_batch_on_this_cp_rank = contiguous
