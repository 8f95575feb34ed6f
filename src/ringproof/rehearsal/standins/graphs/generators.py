"""Generators of a device whose states graphs can register and switch.

A CUDA generator is a handle to a state, and upstream switches states inside of a capture. All
random numbers here come from the CPU's generator: switching copies states in and out of it, and is
itself an operation of the graph, so that a replay advances the states that a device would advance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Record = Callable[[Callable[[], None]], None]


class GeneratorState(torch.Generator):
    """A state that a generator can be switched to."""

    def clone_state(self) -> GeneratorState:
        """Return another state with the same content."""
        return _state(self.get_state())

    def graphsafe_get_state(self) -> GeneratorState:
        """Return the state itself."""
        return self


def _state(content: torch.Tensor) -> GeneratorState:
    found = GeneratorState()
    found.set_state(content)
    return found


class DeviceGenerator(torch.Generator):
    """The default generator of a device: the CPU's, with states that can be switched.

    Args:
        record: Runs a change of state, and records it if a capture runs.
    """

    def __new__(cls, record: Record) -> Any:
        """Make a generator whose own numbers nobody draws."""
        return super().__new__(cls)

    def __init__(self, record: Record) -> None:
        self._record = record
        self._current = _state(torch.get_rng_state())

    def get_state(self) -> torch.Tensor:
        """Return the content of the current state."""
        return torch.default_generator.get_state()

    def set_state(self, new_state: torch.Tensor) -> DeviceGenerator:
        """Change the content of the current state."""
        torch.default_generator.set_state(new_state)
        return self

    def manual_seed(self, seed: int) -> DeviceGenerator:
        """Seed the current state."""
        torch.default_generator.manual_seed(seed)
        return self

    def initial_seed(self) -> int:
        """Return the seed."""
        return torch.default_generator.initial_seed()

    def clone_state(self) -> GeneratorState:
        """Return a new state with the content of the current one."""
        return _state(self.get_state())

    def graphsafe_get_state(self) -> GeneratorState:
        """Return the current state."""
        self._current.set_state(self.get_state())
        return self._current

    def graphsafe_set_state(self, new_state: GeneratorState) -> DeviceGenerator:
        """Switch to another state; in a capture, at each replay."""

        def switch() -> None:
            self._current.set_state(self.get_state())
            torch.default_generator.set_state(new_state.get_state())
            self._current = new_state

        self._record(switch)
        return self
