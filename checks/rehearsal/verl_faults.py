"""Defects that verl had before its change 4250, planted into every rank of a later version."""

from __future__ import annotations

from typing import Any

import torch
import verl.models.mcore.model_forward as forward
import verl.workers.engine.megatron.transformer_impl as engine
from megatron.core import parallel_state


def divide_by_cp() -> None:
    """Divide the loss of each microbatch by CP once more."""
    own = engine.MegatronEngineWithLMHead.postprocess_micro_batch_func

    def divided(self: Any, *arguments: Any, **named: Any) -> Any:
        loss, *rest = own(self, *arguments, **named)
        return loss / parallel_state.get_context_parallel_world_size(), *rest

    engine.MegatronEngineWithLMHead.postprocess_micro_batch_func = divided


def roll_on_each_rank() -> None:
    """Take the label of the last position of a chunk from the same rank."""
    own = forward.preprocess_thd_engine

    def rolled(*arguments: Any, need_roll: bool = False, **named: Any) -> Any:
        rows, *rest = own(*arguments, need_roll=False, **named)
        return (torch.roll(rows, -1, 1), *rest) if need_roll else (rows, *rest)

    forward.preprocess_thd_engine = rolled
