"""Signals that ask a command to end, turned into an exit that runs every clean-up."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(SystemExit):
    """A signal asked this command to end; ``code`` is that of a shell, 128 plus its number.

    Attributes:
        kept: What is there after the command, where the command says so itself.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name
        self.kept = ""


@contextlib.contextmanager
def termination_as_exit() -> Iterator[None]:
    """Let the first of `SIGNALS` raise `Interrupted` in the block; later ones are ignored.

    So clean-up runs, once and to its end, and child processes are ended too. A signal that is
    ignored (as under ``nohup``) stays ignored. Call it in the main thread. Ranks of a launcher keep
    what they have: a rank that waits in a collective would answer too late.
    """
    launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    heard = () if launched else tuple(n for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN)

    def ignore() -> None:
        for number in heard:
            signal.signal(number, signal.SIG_IGN)

    def leave(number: int, _frame: FrameType | None) -> None:
        ignore()
        raise Interrupted(number)

    before = {number: signal.signal(number, leave) for number in heard}
    try:
        yield
    finally:
        atexit.register(ignore)  # what Python removes at its exit is removed whole
        for number, handler in before.items():
            if signal.getsignal(number) is leave:  # else the process is about to end
                signal.signal(number, handler)
