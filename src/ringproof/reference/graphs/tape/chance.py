"""Random numbers in a graph: registered generators go on, others repeat themselves.

On CUDA a graph reads seed and offset of a registered generator (the device's own is one) from
memory at each replay and moves the offset on, so that replays draw what eager calls would have
drawn. An unregistered generator is refused by torch during capture. A kernel that was given a seed
by the host instead, as a number, draws the same numbers at every replay: ``repeat``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ringproof.errors import InputError

Frozen = tuple[torch.Generator, torch.Tensor]
"""A generator, and the state from which every replay draws."""


class Chance:
    """Watches the generators of one captured pass.

    Args:
        name: Of the pass.
        registered: Generators that advance at each replay.
        repeat: Whether unregistered ones are let through, to repeat what the capture drew.
    """

    def __init__(self, name: str, registered: Sequence[torch.Generator], *, repeat: bool) -> None:
        self._name, self._repeat = name, repeat
        self._states = [(generator, generator.get_state()) for generator in registered]

    def before(self, arguments: Iterable[Any], place: str) -> Frozen | None:
        """Before an operation that draws: the state to repeat, if its generator is unregistered.

        Raises:
            InputError: An unregistered generator, or a registered one whose state was set.
        """
        self.check(place)
        given = [one for one in arguments if isinstance(one, torch.Generator)]
        generator = given[0] if given else torch.default_generator
        # A dispatch mode gets another Python object for the same generator.
        if any(generator._cdata == known._cdata for known, _ in self._states):
            return None
        if not self._repeat:
            raise InputError(
                self._name,
                None,
                f"{place} draws from a generator that is not registered with the graph: "
                "every replay would draw the same numbers",
                "pass it in generators=",
            )
        return generator, generator.get_state()

    def after(self) -> None:
        """After an operation that draws: note where the generators are now."""
        self._states = [(generator, generator.get_state()) for generator, _ in self._states]

    def check(self, place: str) -> None:
        """Refuse a state that anything but an operation has changed.

        Raises:
            InputError: See above.
        """
        for generator, state in self._states:
            if not torch.equal(generator.get_state(), state):
                raise InputError(
                    self._name,
                    None,
                    f"the state of a random generator was set before {place}: "
                    "a replay would not set it",
                    "seed outside of the graph",
                )


def draws(operation: Any) -> bool:
    """Whether an operation takes random numbers."""
    return torch.Tag.nondeterministic_seeded in operation.tags
