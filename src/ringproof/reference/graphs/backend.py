"""The interface of a capture backend: what it takes, and how a captured callable behaves.

A captured callable behaves as one of ``torch.cuda.make_graphed_callables``. Forward and backward
are captured separately, each works on memory whose addresses never change, and a call copies its
arguments there, replays, and returns the memory of the result. Nothing else of the call reaches the
graph. Whatever the function takes from around it (process groups, configurations, Python numbers,
the outcome of an ``if``) is a constant of the capture.

Several captures are captured in the order of ``make_graphed_callables``: all forwards, then all
backwards in reverse. Graphs of one pool reuse what earlier captures have freed. An activation is
alive from its forward to its backward; passes that were captured in between have other addresses,
and may be replayed in between. Passes that were captured before or after may have the same
addresses, and must not. Callables that wait for their backwards in changing company, as the slots
of a pipeline do, need a pool each.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import torch

Outputs: TypeAlias = "torch.Tensor | tuple[torch.Tensor | None, ...]"
"""Result of a captured function: a tensor, or a tuple of tensors and ``None``."""

Pool: TypeAlias = Any
"""Memory that several captures may share; made by :meth:`CaptureBackend.new_pool`."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A function to be captured, forward and backward.

    Args:
        name: Name for messages, such as ``layer 3, slot 0, CP size 4``.
        function: Takes the inputs in order. It runs ``warm_up`` times before the capture, and what
            it writes to memory that outlives it, as batch normalization its averages, is written
            that often. In the capture only its Python runs.
        inputs: The static inputs. The captured callable keeps them and copies its arguments into
            them; an argument that already is the static input is not copied. They are plain,
            contiguous leaves that share no memory; a gradient is captured for each that requires
            one. Their content must be valid (offsets within bounds), because the function runs on
            it.
        parameters: Parameters of the modules inside the function, by name. They are read where they
            are: an optimizer that updates in place needs no new capture, one that replaces them
            does. Hooks on gradients must be registered after the capture: they run when autograd
            gets the gradient from the callable, not in the graph.
    """

    name: str
    function: Callable[..., Outputs]
    inputs: tuple[torch.Tensor, ...]
    parameters: Mapping[str, torch.Tensor] = field(default_factory=lambda: MappingProxyType({}))


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


class GraphedCallable(ABC):
    """A captured function, called like the function itself, under autograd or without.

    The tensors it returns are in the graph's memory: the next replay of the same callable
    overwrites them. Gradients are copies, except of the result of another callable without hooks.
    They cannot be differentiated again. A result that is not used further gets a gradient of zeros,
    and each gets it in the layout of the result: where that differs without graphs, sums may run
    and round in another order.

    Args:
        name: Name of the capture.
        inputs: The static inputs: fill them in place and pass them, and nothing is copied.
    """

    def __init__(self, name: str, inputs: tuple[torch.Tensor, ...]) -> None:
        self.name, self.inputs = name, inputs
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
    @abstractmethod
    def memory(self) -> GraphMemory:
        """Memory that it holds; zeros after :meth:`reset`."""

    @abstractmethod
    def __call__(self, *arguments: torch.Tensor) -> Outputs:
        """Copy the arguments in, replay, and return the results.

        Raises:
            InputError: Arguments differ from the static inputs in number, shape, type, device or
                need of a gradient; the callable was reset; or, on the tape, the call would be
                undefined on a device.
        """

    def reset(self) -> None:
        """Free the graphs and their memory. The callable cannot be called again."""
        self.inputs, self._pending = (), None


class CaptureBackend(Protocol):
    """A way to capture and replay."""

    @property
    def name(self) -> str:
        """``cuda``, ``transformer-engine`` or ``tape``."""

    def new_pool(self) -> Pool:
        """Return memory for captures that may overlay each other; see the module."""

    def capture(
        self, captures: Sequence[Capture], *, pool: Pool | None = None, warm_up: int = 3
    ) -> tuple[GraphedCallable, ...]:
        """Warm up and capture every pass. Return one callable for each capture.

        The random generators keep their state, and parameters keep their ``.grad``. If anything
        raises, nothing of the capture remains and the functions still work without graphs, unless
        the driver ended it (see ``cuda``). A collective inside makes the capture a collective; a
        rank that raises leaves the others waiting, so all ranks should agree on what cannot be
        captured before.

        Args:
            captures: Functions to capture.
            pool: Pool to share with earlier captures; a new one if ``None``.
            warm_up: Runs of each function, forward and backward, before the first capture; at least
                one on a GPU.

        Raises:
            InputError: A function cannot be captured (the message has the line at fault), inputs
                cannot be static, autocast has its cache on, or inference mode, anomaly detection or
                another capture is active.
        """
