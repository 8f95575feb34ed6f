"""What is changed in verl in every rank of a run: defects of old versions, and cures of new ones.

The defects are those before verl's change 4250.
"""

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


def count_every_token() -> None:
    """Give the tokens that CP does not divide to the first ranks of the CP group."""
    own = engine.MegatronEngineWithLMHead.postprocess_micro_batch_func

    def counted(self: Any, output: Any, data: Any, *arguments: Any, **named: Any) -> Any:
        loss, _, *rest = own(self, output, data, *arguments, **named)
        ranks = parallel_state.get_context_parallel_world_size()
        share, more = divmod(int(self._routed_num_tokens(data)), ranks)
        share += parallel_state.get_context_parallel_rank() < more
        return loss, torch.tensor(share, dtype=torch.int), *rest

    engine.MegatronEngineWithLMHead.postprocess_micro_batch_func = counted
