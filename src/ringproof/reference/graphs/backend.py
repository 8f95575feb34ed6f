"""The interface of a capture backend: what it takes, and in which order passes are captured.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import torch

from ringproof.reference.graphs.replay import Graphed, Outputs

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


class CaptureBackend(Protocol):
    """A way to capture and replay."""

    @property
    def name(self) -> str:
        """``cuda`` or ``tape``."""

    def new_pool(self) -> Pool:
        """Return memory for captures that may overlay each other; see the module."""

    def capture(
        self, captures: Sequence[Capture], *, pool: Pool | None = None, warm_up: int = 3
    ) -> tuple[Graphed, ...]:
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
