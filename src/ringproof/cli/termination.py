"""Signals that ask a command to end, turned into an exit that runs every clean-up."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def termination_as_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C, so that child processes are ended too."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, leave) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
