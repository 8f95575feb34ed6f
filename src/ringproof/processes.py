"""Commands that end with everything they have started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


@contextlib.contextmanager
def contained(command: Sequence[str], **settings: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a command in a session of its own, and kill all that is left of the session on exit.

    Args:
        settings: Further arguments of `subprocess.Popen`.

    Raises:
        OSError: The command cannot be started.
    """
    process = subprocess.Popen(list(command), start_new_session=True, **settings)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
