"""A captured callable under autograd: copy in, replay, and return static memory."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ringproof.errors import InputError

Outputs: TypeAlias = "torch.Tensor | tuple[torch.Tensor | None, ...]"
"""Result of a captured function: a tensor, or a tuple of tensors and ``None``."""


@dataclass(frozen=True)
class Replays:
    """Number of replays of each pass of a callable."""

    forward: int = 0
    backward: int = 0


@dataclass(frozen=True)
class GraphMemory:
    """Bytes that belong to one captured callable as long as it exists.

    Args:
        inputs: Static inputs; callables may share them.
        gradients: Static gradients of the outputs.
        private: Results, intermediates, and gradients of inputs and parameters: the growth of the
            pool. Captures of one pool share less on the tape than on CUDA.
    """

    inputs: int
    gradients: int
    private: int


class PendingBackward:
    """A replayed forward whose backward may follow. It exists as long as autograd can call it."""


class Segment(Protocol):
    """One captured pass."""

    @property
    def private_bytes(self) -> int:
        """Memory that belongs to it."""

    def replay(self) -> None:
        """Run it again, on the same addresses."""

    def reset(self) -> None:
        """Free it."""


@dataclass(frozen=True)
class StaticMemory:
    """The tensors of a captured callable, apart from its inputs.

    Args:
        parameters: Parameters that get a gradient.
        outputs: Detached results; ``None`` where the function returned that.
        output_gradients: One for each output; ``None`` where it has none.
        gradients: One for each input, then for each parameter; ``None`` where it has none.
        single: Whether the function returned a tensor and no tuple.
    """

    parameters: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor | None, ...]
    output_gradients: tuple[torch.Tensor | None, ...]
    gradients: tuple[torch.Tensor | None, ...]
    single: bool


class Graphed:
    """A captured function, called like the function itself, under autograd or without.

    The tensors it returns are in the graph's memory: the next replay of the same callable
    overwrites them. Gradients are copies, except of the result of another callable without hooks.
    They cannot be differentiated again. A result that is not used further gets a gradient of zeros,
    and each gets it in the layout of the result: where that differs without graphs, sums may run
    and round in another order.

    Args:
        name: Name of the capture.
        inputs: The static inputs: fill them in place and pass them, and nothing is copied.
        segments: Forward, then backward if there is one.
        checked: Whether to refuse a backward whose forward was overwritten by a later one. A device
            would compute with the wrong activations silently.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[torch.Tensor, ...],
        memory: StaticMemory,
        segments: tuple[Segment, ...],
        *,
        checked: bool,
    ) -> None:
        self.name, self.inputs = name, inputs
        self._memory: StaticMemory | None = memory
        self._segments = segments
        self._checked = checked
        self._replays = [0, 0]
        # Autograd holds the object, so that a result that is dropped does not wait any more.
        self._pending: weakref.ref[PendingBackward] | None = None

    @property
    def replays(self) -> Replays:
        """Number of replays of each pass."""
        return Replays(*self._replays)

    @property
    def in_flight(self) -> bool:
        """Whether a forward has been replayed whose backward has not, and still may be."""
        return self._pending is not None and self._pending() is not None

    @property
    def static(self) -> StaticMemory:
        """Its tensors, apart from the inputs.

        Raises:
            InputError: The callable was reset.
        """
        if self._memory is None:
            raise InputError(self.name, "the graph was reset; capture it anew")
        return self._memory

    @property
    def memory(self) -> GraphMemory:
        """Memory that it holds; zeros after :meth:`reset`."""
        if self._memory is None:
            return GraphMemory(0, 0, 0)
        return GraphMemory(
            inputs=bytes_of(self.inputs),
            gradients=bytes_of(self._memory.output_gradients),
            private=sum(segment.private_bytes for segment in self._segments),
        )

    def __call__(self, *arguments: torch.Tensor) -> Outputs:
        """Copy the arguments in, replay, and return the results.

        Raises:
            InputError: Arguments differ from the static inputs in number, shape, type, device or
                need of a gradient; the callable was reset; or, on the tape, the call would be
                undefined on a device.
        """
        static = self.static
        check_arguments(self.name, self.inputs, arguments)
        tensors = (*arguments, *static.parameters)
        differentiable = torch.is_grad_enabled() and len(self._segments) > 1
        follows = differentiable and any(tensor.requires_grad for tensor in tensors)
        outputs: tuple[torch.Tensor | None, ...] = _Replay.apply(self, follows, *tensors)
        return outputs[0] if static.single else outputs

    def reset(self) -> None:
        """Free the graphs and their memory. The callable cannot be called again."""
        for segment in self._segments:
            segment.reset()
        self._segments, self._memory = (), None
        self.inputs, self._pending = (), None

    def replay_forward(
        self, arguments: Sequence[torch.Tensor], *, backward_follows: bool
    ) -> PendingBackward:
        """Copy the arguments in and replay."""
        pending = PendingBackward()
        self._pending = None  # from here on its memory is overwritten, also if this replay fails
        copy_in(self.inputs, arguments)
        self._segments[0].replay()
        self._replays[0] += 1
        self._pending = weakref.ref(pending) if backward_follows else None
        return pending

    def replay_backward(
        self, pending: PendingBackward, output_gradients: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """Copy the gradients of the outputs in, replay, and return those of the inputs.

        Raises:
            InputError: The callable was replayed since this forward.
        """
        static = self.static
        if self._checked and (self._pending is None or self._pending() is not pending):
            problem = "its activations are gone: replayed again since this forward"
            remedy = "give each microbatch in flight a slot of its own, and one backward"
            raise InputError(self.name, f"{problem}; {remedy}")
        try:
            for into, given in zip(static.output_gradients, output_gradients, strict=True):
                if into is not None and given is None:
                    into.zero_()
                elif into is not None and given is not None and not _is_there(into, given):
                    into.copy_(given)
            self._segments[1].replay()
        finally:
            self._pending = None  # a backward that failed cannot be repeated
        self._replays[1] += 1
        return static.gradients


class _Replay(torch.autograd.Function):
    """The replay of a forward, whose dual is the replay of its backward."""

    @staticmethod
    def forward(
        ctx: Any, graphed: Graphed, follows: bool, *tensors: torch.Tensor
    ) -> tuple[Any, ...]:
        """Take the arguments, then the parameters, which only autograd needs."""
        static = graphed.static
        ctx.set_materialize_grads(False)
        ctx.graphed = graphed
        # Another graph copies the gradient that it gets. Anything else may keep it: a hook, or
        # autograd, which uses the gradient of a leaf as its ``.grad``.
        ctx.kept = tuple(not _is_replayed(t) or bool(t._backward_hooks) for t in tensors)
        arguments = tensors[: len(graphed.inputs)]
        ctx.pending = graphed.replay_forward(arguments, backward_follows=follows)
        outputs = tuple(None if o is None else o.detach() for o in static.outputs)
        pairs = zip(outputs, static.output_gradients, strict=True)
        constant = [o for o, gradient in pairs if o is not None and gradient is None]
        ctx.mark_non_differentiable(*constant)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the arguments and the parameters.

        Raises:
            InputError: They are to be differentiated again. Autograd would take them for constants
                if only the arguments required a gradient.
        """
        if torch.is_grad_enabled():
            problem = "its gradients cannot be differentiated again"
            raise InputError(ctx.graphed.name, f"{problem}; compute without create_graph=True")
        found = ctx.graphed.replay_backward(ctx.pending, gradients)
        returned = [
            None if gradient is None else gradient.clone() if kept else gradient.detach()
            for gradient, kept in zip(found, ctx.kept, strict=True)
        ]
        return None, None, *returned


def check_arguments(
    name: str, inputs: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]
) -> None:
    """Refuse arguments that differ from the static inputs.

    Raises:
        InputError: Number, shape, dtype, device or the need of a gradient differs.
    """
    if len(arguments) != len(inputs):
        problem = f"it was captured with {len(inputs)} inputs, and {len(arguments)} are given"
        raise InputError(name, f"{problem}; pass as many")
    for index, (static, given) in enumerate(zip(inputs, arguments, strict=True)):
        wanted, found = _likeness(static), _likeness(given)
        if wanted != found:
            problem = f"input {index} was captured as {wanted} and is {found}"
            raise InputError(name, f"{problem}; capture it anew")
        if given.requires_grad and not static.requires_grad and torch.is_grad_enabled():
            problem = f"input {index} requires a gradient, and was captured without"
            remedy = "let the static input require one, or detach"
            raise InputError(name, f"{problem}; {remedy}")


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


def _is_there(static: torch.Tensor, given: torch.Tensor) -> bool:
    """Return whether two tensors of one shape and type are the same memory in the same layout."""
    return (
        static.data_ptr() == given.data_ptr()
        and static.stride() == given.stride()
        and static.is_conj() == given.is_conj()
        and static.is_neg() == given.is_neg()
    )


def _is_replayed(tensor: torch.Tensor) -> bool:
    """Return whether it is the result of a graph, whose backward gets its gradient."""
    node: Any = _Replay
    return type(tensor.grad_fn) is node._backward_cls


def _likeness(tensor: Any) -> str:
    if not isinstance(tensor, torch.Tensor) or is_traceable_wrapper_subclass(tensor):
        return type(tensor).__name__
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape)} on {tensor.device}"


def bytes_of(tensors: Sequence[torch.Tensor | None]) -> int:
    """Return the size of some tensors."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)
