"""Signals that ask a command to end, turned into an exit that runs every clean-up."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PAUSE_SECONDS = 0.01


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

    So clean-up runs, once and to its end, and child processes are ended too. A signal that arrives
    in a finalizer, out of which Python lets no exception, is sent again. One that is ignored (as
    under ``nohup``) stays ignored. Call it in the main thread. Ranks of a launcher keep what they
    have: a rank that waits in a collective would answer too late.
    """
    launched = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    heard = () if launched else tuple(n for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN)

    def ignore() -> None:
        for number in heard:
            signal.signal(number, signal.SIG_IGN)

    def leave(number: int, _frame: FrameType | None) -> None:
        ignore()
        raise Interrupted(number)

    def send_again(lost: Any) -> None:
        if not isinstance(lost.exc_value, Interrupted):
            report(lost)
            return
        for number in heard:
            signal.signal(number, leave)
        number = signal.Signals[lost.exc_value.name]
        threading.Timer(_PAUSE_SECONDS, signal.pthread_kill, (main_thread, number)).start()

    main_thread, report = threading.get_ident(), sys.unraisablehook
    sys.unraisablehook = send_again
    before = {number: signal.signal(number, leave) for number in heard}
    try:
        yield
    finally:
        sys.unraisablehook = report
        atexit.register(ignore)  # what Python removes at its exit is removed whole
        for number, handler in before.items():
            if signal.getsignal(number) is leave:  # else the process is about to end
                signal.signal(number, handler)
