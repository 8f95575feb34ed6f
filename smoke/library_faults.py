"""Changes made to megatron-core in ranks: float64, a planted defect, and a mended one."""

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


def float64() -> None:
    """Let the library train in float64, which upstream narrows and its optimizers refuse."""
    import torch

    from ringproof.rehearsal.library import building

    narrow = torch.Tensor.float

    def keeping(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        return tensor if tensor.dtype == torch.float64 else narrow(tensor, *arguments, **named)

    torch.Tensor.float = keeping  # upstream's cross entropy narrows by it
    building.optimizer = lambda _, model: Descent(model)


class Descent:
    """Plain gradient descent, with the interface of megatron-core's optimizers."""

    rate = 0.1  # Adam's would move nothing

    def __init__(self, model: list[Any]) -> None:
        self._parameters = [p for chunk in model for p in chunk.parameters() if p.requires_grad]

    def zero_grad(self) -> None:
        """Do nothing: the wrapper's buffers are cleared by themselves."""

    def scale_loss(self, loss: Any) -> Any:
        return loss

    def step(self) -> tuple[bool, Any, None]:
        """Update, and return success, the gradient norm, and no count of zeros."""
        import torch
        from megatron.core import parallel_state

        first = parallel_state.get_tensor_model_parallel_rank() == 0
        square = torch.zeros((), dtype=torch.float64)
        with torch.no_grad():
            for parameter in self._parameters:
                if first or parameter.tensor_model_parallel:
                    square += parameter.main_grad.double().square().sum()
                parameter -= self.rate * parameter.main_grad
        torch.distributed.all_reduce(square, group=parallel_state.get_model_parallel_group())
        return True, square.sqrt(), None
