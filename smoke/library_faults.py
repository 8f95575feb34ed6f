"""Changes made to megatron-core in ranks: a planted defect, and a mended one."""

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


def kept_outputs() -> None:
    """Keep pipeline outputs until nothing refers to them."""
    from ringproof.rehearsal.library import building

    original = building.configuration

    def keeping(options: Any) -> Any:
        config = original(options)
        config.deallocate_pipeline_outputs = False
        return config

    building.configuration = keeping
