"""A stand-in of a compiled kernel is one operation of a graph.

A kernel reads lengths and offsets on the device, so that a replay sees the values that its inputs
have then. Its stand-in reads them on the host and computes with several torch operations, which
would be frozen one by one; the tape therefore records and repeats the call as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

NAMESPACE = "kernel"


class Kernel:
    """What the tape calls in a replay, with the names that it asks operations for.

    Args:
        name: Symbol of the kernel, for people.
        function: The stand-in.
    """

    namespace = NAMESPACE

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function

    def name(self) -> str:
        """Return the symbol."""
        return self._name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the stand-in."""
        return self._function(*arguments, **named)


def as_one_operation(
    name: str, function: Callable[..., Any], recorder: Callable[[], Any]
) -> Callable[..., Any]:
    """Return a function that is recorded as one operation while a capture runs.

    Args:
        name: Symbol of the kernel.
        function: The stand-in.
        recorder: Returns the recorder of the capture that runs, ``None`` if none does.
    """
    kernel = Kernel(name, function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        active = recorder()
        if active is None:
            return function(*arguments, **named)
        return active.record_kernel(kernel, arguments, named)

    return call
