"""What every capture backend takes and gives: the contract between the graph bank and a device.

A captured callable behaves as one of ``torch.cuda.make_graphed_callables``: forward and backward
are captured apart, each works on memory whose addresses never change, and a call copies its
arguments there, replays, and hands out the memory of the result. Nothing else of the call reaches
the graph. Whatever the function takes from around it (process groups, configurations, Python
numbers, the outcome of an ``if``) is a constant of the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import torch

from ringproof.reference.graphs.order import Pass

Outputs: TypeAlias = "torch.Tensor | tuple[torch.Tensor | None, ...]"
"""What a captured function returns: a tensor, or a tuple of tensors and ``None``."""

Pool: TypeAlias = Any
"""Memory that several captures may share; made by :meth:`CaptureBackend.new_pool`."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """One thing to be captured, forward and backward.

    Args:
        name: For messages: ``layer 3, slot 0, CP size 4``.
        function: Takes the inputs in order. It runs ``warm_up`` times before the capture, and what
            it writes to memory that outlives it, as batch normalisation its averages, is written
            that often. In the capture only its Python runs.
        inputs: The static inputs. The captured callable keeps them and copies its arguments into
            them; one that already is the static input is not copied. Plain, contiguous leaves that
            share no memory; a gradient is captured for each that requires one. Their content at
            capture time must be valid (offsets within bounds), because the function runs on it.
        parameters: By name; those of the modules inside the function. They are read where they
            are: an optimizer that updates in place needs no new capture, one that puts others in
            their place does. Each that requires a gradient gets one. No hooks on gradients yet:
            they run when autograd gets the gradient from the callable, not in the graph.
    """

    name: str
    function: Callable[..., Outputs]
    inputs: tuple[torch.Tensor, ...]
    parameters: Mapping[str, torch.Tensor] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Replays:
    """How often a callable was replayed: evidence for a log."""

    forward: int = 0
    backward: int = 0


@dataclass(frozen=True)
class GraphMemory:
    """Bytes that belong to one captured callable as long as it exists.

    Args:
        inputs: Static inputs; callables may share them.
        gradients: Static gradients of the outputs.
        private: Results, intermediates, and gradients of inputs and parameters: what the pool grew
            by. Captures of one pool share less on the tape than on CUDA: see ``tape.scratch``.
    """

    inputs: int
    gradients: int
    private: int


class GraphedCallable(Protocol):
    """A captured function; called like the function itself, under autograd or without.

    The tensors it returns lie in the graph's memory: the next replay of the same callable
    overwrites them. Gradients are copies, except of what comes straight out of another callable
    and has no hooks. They cannot be differentiated again. A result that is not used further gets a
    gradient of zeros, and each gets it in the layout of the result: where that is not so without
    graphs, sums may run in another order and round in another way.
    """

    @property
    def name(self) -> str:
        """Of the capture."""
        ...

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """The static inputs: fill them in place and pass them, and nothing is copied."""
        ...

    @property
    def replays(self) -> Replays:
        """How often each pass has been replayed."""
        ...

    @property
    def memory(self) -> GraphMemory:
        """What it holds; zeros after :meth:`reset`."""
        ...

    @property
    def in_flight(self) -> bool:
        """Whether a forward has been replayed whose backward has not, and still may be."""
        ...

    def __call__(self, *arguments: torch.Tensor) -> Outputs:
        """Copy in, replay, hand out.

        Raises:
            InputError: Arguments unlike the static inputs in number, shape, type, device or need
                of a gradient; a callable that was reset; a call during a capture; and, on the tape,
                whatever would be undefined on a device.
        """
        ...

    def reset(self) -> None:
        """Free the graphs and their memory. The callable can be called no more."""
        ...


class CaptureBackend(Protocol):
    """A way to capture and replay."""

    @property
    def name(self) -> str:
        """``cuda``, ``transformer-engine`` or ``tape``."""
        ...

    def new_pool(self) -> Pool:
        """Memory for captures that may overlay each other.

        Two captures of one pool share addresses where the first had freed memory when the second
        was captured. So they must be replayed in the order of their capture, and a pass that is
        replayed while another one waits for its backward must have been captured while that one
        was waiting; see ``order``. Different CP sizes of one slot never wait for each other.
        """
        ...

    def capture(
        self,
        captures: Sequence[Capture],
        *,
        order: Sequence[Pass] | None = None,
        pool: Pool | None = None,
        warm_up: int = 3,
        generators: Sequence[torch.Generator] = (),
    ) -> tuple[GraphedCallable, ...]:
        """Warm up, capture every pass, and leave everything else as it was.

        The state of the random generators afterwards is that before; parameters keep their
        ``.grad``. If anything raises, nothing of the capture remains and the functions still work
        without graphs, unless the driver broke it off (see ``cuda``). A collective inside makes the
        capture a collective; a rank that raises leaves the others waiting, so all ranks should
        agree on what cannot be captured before.

        Args:
            captures: What to capture.
            order: In which order, each forward before its backward; see ``order.default_order``.
            pool: To share with earlier captures; a new one if ``None``.
            warm_up: Runs of each function, forward and backward, before the first capture; at least
                one on a GPU.
            generators: Random generators that advance at each replay, beside the device's own.

        Returns:
            One callable for each capture.

        Raises:
            InputError: A function that cannot be captured, with the line of it that is at fault;
                inputs that cannot be static; an order that is none; autocast with its cache on;
                inference mode; anomaly detection; a capture inside of another one.
        """
        ...
