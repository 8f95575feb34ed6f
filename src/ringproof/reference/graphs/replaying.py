"""A captured callable under autograd: copy in, replay, hand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.autograd.function import once_differentiable

from ringproof.errors import InputError
from ringproof.reference.graphs.backend import GraphMemory, Outputs, Replays


class Segment(Protocol):
    """One captured pass."""

    @property
    def private_bytes(self) -> int:
        """Memory that belongs to it."""
        ...

    def replay(self) -> None:
        """Run it again, on the same addresses."""
        ...

    def reset(self) -> None:
        """Free it."""
        ...


@dataclass(frozen=True)
class Surface:
    """The memory through which a captured callable is used.

    Args:
        inputs: Static inputs.
        parameters: Those that get a gradient.
        outputs: Detached; ``None`` where the function returned that.
        output_gradients: One for each output; ``None`` where it has none.
        gradients: One for each input, then for each parameter; ``None`` where it has none.
        single: Whether the function returned a tensor and no tuple.
    """

    inputs: tuple[torch.Tensor, ...]
    parameters: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor | None, ...]
    output_gradients: tuple[torch.Tensor | None, ...]
    gradients: tuple[torch.Tensor | None, ...]
    single: bool

    def check(self, name: str, arguments: Sequence[torch.Tensor]) -> None:
        """Refuse arguments that the static inputs cannot stand for."""
        if len(arguments) != len(self.inputs):
            raise InputError(
                name, len(arguments), f"captured with {len(self.inputs)} inputs", "pass as many"
            )
        for index, (static, given) in enumerate(zip(self.inputs, arguments, strict=True)):
            wanted, found = _likeness(static), _likeness(given)
            if wanted != found:
                raise InputError(
                    name, found, f"input {index} was captured as {wanted}", "capture it anew"
                )
            if given.requires_grad and not static.requires_grad and torch.is_grad_enabled():
                raise InputError(
                    name,
                    f"input {index} that requires a gradient",
                    "captured without",
                    "let the static input require one, or detach",
                )


class Graphed:
    """See ``GraphedCallable``.

    Args:
        name: Of the capture.
        surface: Its memory.
        segments: Forward, then backward if there is one.
        checked: Whether to refuse a backward whose forward was overwritten by a later one. A
            device would compute with the wrong activations in silence; a backend that shows what
            a device does says no.
    """

    def __init__(
        self, name: str, surface: Surface, segments: tuple[Segment, ...], *, checked: bool
    ) -> None:
        self.name = name
        self._surface: Surface | None = surface
        self._segments = segments
        self._checked = checked
        self._replays = [0, 0]
        self._waiting: int | None = None  # the forward replay whose backward is to come

    @property
    def surface(self) -> Surface:
        """Its memory.

        Raises:
            InputError: The callable was reset.
        """
        if self._surface is None:
            raise InputError(self.name, None, "the graph was reset", "capture it anew")
        return self._surface

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """See ``GraphedCallable``."""
        return self.surface.inputs

    @property
    def replays(self) -> Replays:
        """See ``GraphedCallable``."""
        return Replays(*self._replays)

    @property
    def in_flight(self) -> bool:
        """See ``GraphedCallable``."""
        return self._waiting is not None

    @property
    def memory(self) -> GraphMemory:
        """See ``GraphedCallable``."""
        if self._surface is None:
            return GraphMemory(0, 0, 0)
        return GraphMemory(
            inputs=_bytes(self._surface.inputs),
            gradients=_bytes(self._surface.output_gradients),
            private=sum(segment.private_bytes for segment in self._segments),
        )

    def __call__(self, *arguments: torch.Tensor) -> Outputs:
        """See ``GraphedCallable``."""
        surface = self.surface
        surface.check(self.name, arguments)
        tensors = (*arguments, *surface.parameters)
        follows = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        outputs: tuple[torch.Tensor | None, ...] = _Replay.apply(self, follows, *tensors)
        return outputs[0] if surface.single else outputs

    def reset(self) -> None:
        """See ``GraphedCallable``."""
        for segment in self._segments:
            segment.reset()
        self._segments, self._surface, self._waiting = (), None, None

    def replay_forward(self, arguments: Sequence[torch.Tensor], *, backward_follows: bool) -> int:
        """Copy the arguments in and replay; the number of this replay."""
        with torch.no_grad():
            for static, given in zip(self.surface.inputs, arguments, strict=True):
                _fill(static, given)
        self._segments[0].replay()
        self._replays[0] += 1
        self._waiting = self._replays[0] if backward_follows else None
        return self._replays[0]

    def replay_backward(
        self, number: int, output_gradients: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """Copy the gradients of the outputs in and replay; those of inputs and parameters."""
        surface = self.surface
        if self._checked and self._waiting != number:
            raise InputError(
                self.name,
                None,
                "its activations are gone: replayed again since this forward",
                "give each microbatch in flight a slot of its own, and one backward",
            )
        pairs = zip(surface.output_gradients, output_gradients, strict=True)
        for static, given in pairs:
            if static is not None:
                _fill(static, torch.zeros_like(static) if given is None else given)
        if len(self._segments) > 1:
            self._segments[1].replay()
        self._replays[1] += 1
        self._waiting = None
        return surface.gradients


class _Replay(torch.autograd.Function):
    """The replay of a forward, whose dual is the replay of its backward."""

    @staticmethod
    def forward(
        ctx: Any, graphed: Graphed, follows: bool, *tensors: torch.Tensor
    ) -> tuple[Any, ...]:
        """Takes the arguments, then the parameters, which only autograd wants to know of."""
        surface = graphed.surface
        ctx.set_materialize_grads(False)
        ctx.graphed = graphed
        # Another graph copies the gradient that it is given. Anything else may keep it: autograd
        # takes what reaches a leaf for its ``.grad``, and must not be left with the graph's memory.
        ctx.kept = tuple(not _is_replayed(tensor) for tensor in tensors)
        arguments = tensors[: len(surface.inputs)]
        ctx.number = graphed.replay_forward(arguments, backward_follows=follows)
        outputs = tuple(None if o is None else o.detach() for o in surface.outputs)
        pairs = zip(outputs, surface.output_gradients, strict=True)
        constant = [o for o, gradient in pairs if o is not None and gradient is None]
        ctx.mark_non_differentiable(*constant)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the arguments and the parameters."""
        found = ctx.graphed.replay_backward(ctx.number, gradients)
        return (
            None,
            None,
            *(
                None if gradient is None else gradient.clone() if kept else gradient.detach()
                for gradient, kept in zip(found, ctx.kept, strict=True)
            ),
        )


def _fill(static: torch.Tensor, given: torch.Tensor) -> None:
    if static.data_ptr() != given.data_ptr() or static.stride() != given.stride():
        static.copy_(given)


def _is_replayed(tensor: torch.Tensor) -> bool:
    """Whether it came out of a graph, into whose backward its gradient goes."""
    return type(tensor.grad_fn).__name__ == f"{_Replay.__name__}Backward"


def _likeness(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape)} on {tensor.device}"


def _bytes(tensors: Sequence[torch.Tensor | None]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)
