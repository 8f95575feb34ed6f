"""Transformer Engine's ``make_graphed_callables``, which Megatron-LM uses, as a backend.

It takes an order of passes and knows Transformer Engine's own state (FP8 scales, caches of
weights). This wraps it so that the graph bank need not know the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import Capture, GraphMemory, Outputs, Replays
from ringproof.reference.graphs.capturing import check_inputs, unchanged_state
from ringproof.reference.graphs.order import Pass, checked_order


def is_installed() -> bool:
    """Whether Transformer Engine's PyTorch part can be imported."""
    return (
        find_spec("transformer_engine") is not None
        and find_spec("transformer_engine_torch") is not None
    )


@dataclass(frozen=True)
class TransformerEngineBackend:
    """See ``CaptureBackend``.

    Args:
        device: A GPU.
    """

    device: torch.device
    name: str = field(default="transformer-engine", init=False)

    def new_pool(self) -> Any:
        """See ``CaptureBackend``."""
        return torch.cuda.graph_pool_handle()

    def capture(
        self,
        captures: Sequence[Capture],
        *,
        order: Sequence[Pass] | None = None,
        pool: Any | None = None,
        warm_up: int = 3,
        generators: Sequence[torch.Generator] = (),
    ) -> tuple[TransformerEngineCallable, ...]:
        """See ``CaptureBackend``. Generators are those of Transformer Engine's own tracker.

        Raises:
            InputError: Generators are given; or see ``CaptureBackend``.
        """
        if generators:
            raise InputError(
                "generators",
                len(generators),
                "Transformer Engine registers those of its own tracker",
                "add them to its CudaRNGStatesTracker",
            )
        passes = checked_order(order, len(captures))
        for capture in captures:
            check_inputs(capture)
        make_graphed_callables = import_module("transformer_engine.pytorch").make_graphed_callables
        with torch.cuda.device(self.device):
            own = torch.cuda.default_generators[torch.cuda.current_device()]
            before = torch.cuda.memory_reserved()
            with unchanged_state((own,)):
                graphed = make_graphed_callables(
                    tuple(_Module(capture.function, capture.parameters) for capture in captures),
                    tuple(capture.inputs for capture in captures),
                    num_warmup_iters=warm_up,
                    allow_unused_input=True,
                    _order=[_signed(one) for one in passes],
                    pool=self.new_pool() if pool is None else pool,
                )
            grown = max(0, torch.cuda.memory_reserved() - before)
        return tuple(
            TransformerEngineCallable(capture, function, grown // len(captures))
            for capture, function in zip(captures, graphed, strict=True)
        )


class TransformerEngineCallable:
    """See ``GraphedCallable``.

    Args:
        capture: What was captured.
        function: What Transformer Engine made of it.
        private_bytes: Its share of what the pool grew by.
    """

    def __init__(self, capture: Capture, function: Any, private_bytes: int) -> None:
        self.name, self.inputs = capture.name, capture.inputs
        self._function, self._private_bytes = function, private_bytes
        self._forward = self._backward = 0
        self.in_flight = False

    @property
    def replays(self) -> Replays:
        """See ``GraphedCallable``."""
        return Replays(self._forward, self._backward)

    @property
    def memory(self) -> GraphMemory:
        """See ``GraphedCallable``; gradients of outputs are part of the private memory."""
        if self._function is None:
            return GraphMemory(0, 0, 0)
        inputs = sum(t.numel() * t.element_size() for t in self.inputs)
        return GraphMemory(inputs=inputs, gradients=0, private=self._private_bytes)

    def __call__(self, *arguments: torch.Tensor) -> Outputs:
        """See ``GraphedCallable``."""
        if self._function is None:
            raise InputError(self.name, None, "the graph was reset", "capture it anew")
        outputs: Outputs = self._function(*arguments)
        self._forward += 1
        results = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        waiting = [o for o in results if o is not None and o.requires_grad]
        self.in_flight = bool(waiting)
        if waiting:
            waiting[0].register_hook(self._count_backward)
        return outputs

    def reset(self) -> None:
        """See ``GraphedCallable``."""
        if self._function is not None:
            self._function.reset()
        self._function = None

    def _count_backward(self, _: torch.Tensor) -> None:
        self._backward += 1
        self.in_flight = False


class _Module(nn.Module):
    """A function as a module, because gradients go to the parameters of modules."""

    def __init__(
        self, function: Callable[..., Outputs], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        super().__init__()
        self._function = function
        for index, parameter in enumerate(parameters.values()):
            if parameter.requires_grad:
                self.register_parameter(str(index), parameter)

    def forward(self, *arguments: torch.Tensor) -> Outputs:
        return self._function(*arguments)


def _signed(one: Pass) -> int:
    """Transformer Engine counts from one, and backwards are negative."""
    return (one.capture + 1) * (1 if one.direction == "forward" else -1)
