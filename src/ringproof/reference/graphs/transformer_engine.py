"""Transformer Engine's ``make_graphed_callables``, which Megatron-LM uses, as a backend.

It captures Transformer Engine's own state (FP8 scales, caches of weights), too. The wrapper makes
it behave like the other backends:

* Arguments are checked, and gradients copied. Releases up to 2.18 return the graph's own memory as
  the gradient of a parameter, and autograd makes that its ``.grad``.
* When a capture raises, ``.grad`` of the inputs, Python's garbage collection, and the flag of an
  active capture are restored.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import (
    Capture,
    GraphedCallable,
    GraphMemory,
    Outputs,
    PendingBackward,
)
from ringproof.reference.graphs.capture import check_captures, check_warm_up, unchanged_state
from ringproof.reference.graphs.cuda import refused
from ringproof.reference.graphs.replay import bytes_of, check_arguments

PACKAGE = "transformer_engine.pytorch"
OWN_COPIES = "clone_param_grads_on_return"
"""Argument of versions that copy gradients themselves."""


def is_installed() -> bool:
    """Whether Transformer Engine's PyTorch part can be imported."""
    return (
        find_spec("transformer_engine") is not None
        and find_spec("transformer_engine_torch") is not None
    )


@dataclass(frozen=True)
class TransformerEngineBackend:
    """Captures on a GPU with Transformer Engine; see ``CaptureBackend``.

    Random generators other than the device's are those of Transformer Engine's own tracker.
    """

    device: torch.device
    name: str = field(default="transformer-engine", init=False)

    def new_pool(self) -> Any:
        """See ``CaptureBackend``."""
        return torch.cuda.graph_pool_handle()

    def capture(
        self, captures: Sequence[Capture], *, pool: Any | None = None, warm_up: int = 3
    ) -> tuple[TransformerEngineCallable, ...]:
        """See ``CaptureBackend``.

        Raises:
            InputError: There is no warm-up; or see ``CaptureBackend``.
        """
        check_warm_up(warm_up)
        check_captures(captures)
        if not captures:
            return ()
        with torch.cuda.device(self.device):
            before = torch.cuda.memory_reserved()
            memory = self.new_pool() if pool is None else pool
            graphed = _graphed(captures, memory, warm_up)
            grown = max(0, torch.cuda.memory_reserved() - before)
        return tuple(
            TransformerEngineCallable(capture, function, grown // len(captures))
            for capture, function in zip(captures, graphed, strict=True)
        )


def _graphed(captures: Sequence[Capture], pool: Any, warm_up: int) -> Sequence[Any]:
    make_graphed_callables = import_module(PACKAGE).make_graphed_callables
    known = inspect.signature(make_graphed_callables).parameters
    options = {OWN_COPIES: False} if OWN_COPIES in known else {}
    own = torch.cuda.default_generators[torch.cuda.current_device()]
    forwards = range(1, len(captures) + 1)  # backwards are negative
    with _put_right_if_broken(captures), unchanged_state((own,)):
        graphed: Sequence[Any] = make_graphed_callables(
            tuple(_Module(capture.function, capture.parameters) for capture in captures),
            tuple(capture.inputs for capture in captures),
            num_warmup_iters=warm_up,
            allow_unused_input=True,
            _order=[*forwards, *(-number for number in reversed(forwards))],
            pool=pool,
            **options,
        )
    return graphed


@contextmanager
def _put_right_if_broken(captures: Sequence[Capture]) -> Iterator[None]:
    """Undo what a capture that raises leaves behind; it has none of this in a ``finally``.

    Raises:
        InputError: In place of an error of the driver or of torch.
    """
    leaves = [t for one in captures for t in (*one.inputs, *one.parameters.values())]
    gradients = [(leaf, leaf.grad) for leaf in leaves]
    collects, stream = gc.isenabled(), torch.cuda.current_stream()
    try:
        yield
    except Exception as error:
        torch.cuda.set_stream(stream)
        for leaf, gradient in gradients:
            leaf.grad = gradient
        if collects:
            gc.enable()
        if "__call__" in vars(_Module):  # wrapped, for FP8
            del _Module.__call__
        import_module(f"{PACKAGE}.graph").set_capture_end()
        if isinstance(error, RuntimeError):
            raise refused(", ".join(one.name for one in captures), error) from error
        raise


class TransformerEngineCallable(GraphedCallable):
    """A callable of Transformer Engine with its share of the pool; see ``GraphedCallable``."""

    def __init__(self, capture: Capture, function: Any, private_bytes: int) -> None:
        super().__init__(capture.name, capture.inputs)
        self._function, self._private_bytes = function, private_bytes

    @property
    def memory(self) -> GraphMemory:
        """See ``GraphedCallable``; gradients of outputs are part of the private memory."""
        if self._function is None:
            return GraphMemory(0, 0, 0)
        return GraphMemory(bytes_of(self.inputs), gradients=0, private=self._private_bytes)

    def __call__(self, *arguments: torch.Tensor) -> Outputs:
        """See ``GraphedCallable``."""
        if self._function is None:
            raise InputError(self.name, "the graph was reset; capture it anew")
        check_arguments(self.name, self.inputs, arguments)
        self._pending = None
        outputs: Outputs = self._function(*arguments)
        self._replays[0] += 1
        results = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        nodes = [o.grad_fn for o in results if o is not None and o.grad_fn is not None]
        if nodes:
            nodes[0].register_hook(self._awaited())
        return outputs

    def reset(self) -> None:
        """See ``GraphedCallable``."""
        free = getattr(self._function, "reset", None)  # since 2.10
        if free is not None:
            free()
        self._function = None
        super().reset()

    def _awaited(self) -> Callable[[Any, Any], tuple[torch.Tensor | None, ...]]:
        """Return a hook of the node whose backward may follow; it exists as long as the node."""
        pending = PendingBackward()
        self._pending = weakref.ref(pending)

        def after_the_backward(
            gradients: Sequence[torch.Tensor | None], _: object, pending: PendingBackward = pending
        ) -> tuple[torch.Tensor | None, ...]:
            self._replays[1] += 1
            self._pending = None
            return tuple(None if gradient is None else gradient.clone() for gradient in gradients)

        return after_the_backward


class _Module(nn.Module):
    """A function as a module, because gradients go to the parameters of modules."""

    def __init__(
        self, function: Callable[..., Outputs], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        super().__init__()
        self._function = function
        trained = (one for one in parameters.values() if one.requires_grad)
        # Not register_parameter, which takes no plain tensors.
        self._parameters.update({str(index): one for index, one in enumerate(trained)})

    def forward(self, *arguments: torch.Tensor) -> Outputs:
        return self._function(*arguments)
