"""A captured callable under autograd: copy in, replay, hand out."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

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


class Turn:
    """A replayed forward whose backward is to come. Gone as soon as nothing can ask for it."""


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
        # Autograd holds the turn. So a result that is dropped, by an exception too, waits no more.
        self._waiting: weakref.ref[Turn] | None = None

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
        return self._turn is not None

    @property
    def _turn(self) -> Turn | None:
        return None if self._waiting is None else self._waiting()

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
        check_arguments(self.name, surface.inputs, arguments)
        tensors = (*arguments, *surface.parameters)
        differentiable = torch.is_grad_enabled() and len(self._segments) > 1
        follows = differentiable and any(tensor.requires_grad for tensor in tensors)
        outputs: tuple[torch.Tensor | None, ...] = _Replay.apply(self, follows, *tensors)
        return outputs[0] if surface.single else outputs

    def reset(self) -> None:
        """See ``GraphedCallable``."""
        for segment in self._segments:
            segment.reset()
        self._segments, self._surface, self._waiting = (), None, None

    def replay_forward(self, arguments: Sequence[torch.Tensor], *, backward_follows: bool) -> Turn:
        """Copy the arguments in and replay; whose backward may follow."""
        turn = Turn()
        self._waiting = None  # from here on its memory is overwritten, also if this replay fails
        copy_in(self.surface.inputs, arguments)
        self._segments[0].replay()
        self._replays[0] += 1
        self._waiting = weakref.ref(turn) if backward_follows else None
        return turn

    def replay_backward(
        self, turn: Turn, output_gradients: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """Copy the gradients of the outputs in and replay; those of inputs and parameters."""
        surface = self.surface
        if self._checked and self._turn is not turn:
            raise InputError(
                self.name,
                None,
                "its activations are gone: replayed again since this forward",
                "give each microbatch in flight a slot of its own, and one backward",
            )
        try:
            for static, given in zip(surface.output_gradients, output_gradients, strict=True):
                if static is not None and given is None:
                    static.zero_()
                elif static is not None and given is not None:
                    _fill(static, given)
            self._segments[1].replay()
        finally:
            self._waiting = None  # one that failed half way cannot be tried again
        self._replays[1] += 1
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
        # Another graph copies the gradient that it is given. Anything else may keep it: a hook, or
        # autograd, which takes what reaches a leaf for its ``.grad``.
        ctx.kept = tuple(not _is_replayed(t) or bool(t._backward_hooks) for t in tensors)
        arguments = tensors[: len(surface.inputs)]
        ctx.turn = graphed.replay_forward(arguments, backward_follows=follows)
        outputs = tuple(None if o is None else o.detach() for o in surface.outputs)
        pairs = zip(outputs, surface.output_gradients, strict=True)
        constant = [o for o, gradient in pairs if o is not None and gradient is None]
        ctx.mark_non_differentiable(*constant)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the arguments and the parameters.

        Raises:
            InputError: These are to be differentiated again. Autograd would take them for constants
                if nothing but the arguments required a gradient, so it is no help here.
        """
        if torch.is_grad_enabled():
            problem = "its gradients cannot be differentiated again"
            raise InputError(ctx.graphed.name, None, problem, "compute without create_graph=True")
        found = ctx.graphed.replay_backward(ctx.turn, gradients)
        return (
            None,
            None,
            *(
                None if gradient is None else gradient.clone() if kept else gradient.detach()
                for gradient, kept in zip(found, ctx.kept, strict=True)
            ),
        )


def check_arguments(
    name: str, inputs: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]
) -> None:
    """Refuse arguments that the static inputs cannot stand for.

    Raises:
        InputError: See above.
    """
    if len(arguments) != len(inputs):
        raise InputError(
            name, len(arguments), f"captured with {len(inputs)} inputs", "pass as many"
        )
    for index, (static, given) in enumerate(zip(inputs, arguments, strict=True)):
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


def copy_in(inputs: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> None:
    """Fill the static inputs. Arguments may lie in them, in another order too."""
    pairs = [
        (static, given)
        for static, given in zip(inputs, arguments, strict=True)
        if not _is_there(static, given)
    ]
    memory = {static.untyped_storage().data_ptr() for static in inputs} if pairs else set()
    with torch.no_grad():
        apart = [
            given.clone() if given.untyped_storage().data_ptr() in memory else given
            for _, given in pairs
        ]
        for (static, _), given in zip(pairs, apart, strict=True):
            static.copy_(given)


def _fill(static: torch.Tensor, given: torch.Tensor) -> None:
    if not _is_there(static, given):
        static.copy_(given)


def _is_there(static: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether two tensors of one shape and type are the same memory, read in the same way."""
    return (
        static.data_ptr() == given.data_ptr()
        and static.stride() == given.stride()
        and static.is_conj() == given.is_conj()
        and static.is_neg() == given.is_neg()
    )


def _is_replayed(tensor: torch.Tensor) -> bool:
    """Whether it came out of a graph, into whose backward its gradient goes."""
    node: Any = _Replay
    return type(tensor.grad_fn) is node._backward_cls


def _likeness(tensor: Any) -> str:
    if not isinstance(tensor, torch.Tensor) or is_traceable_wrapper_subclass(tensor):
        return type(tensor).__name__
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape)} on {tensor.device}"


def _bytes(tensors: Sequence[torch.Tensor | None]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)
