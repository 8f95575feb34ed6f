"""A child process that is ended together with its group and with what left its group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import psutil

_GRACE_SECONDS = 5.0


@contextlib.contextmanager
def contained(
    command: Sequence[str], *, cwd: Path, output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in its own session, and end all of its processes on exit.

    The child is interrupted first, so that it can close what it opened, and killed after a grace
    period. Its own output goes to a file, so no pipe can fill.
    """
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process started by `contained`, its group and its descendants."""
    strays = _descendants(process.pid)
    try:
        if process.poll() is None:
            _signal_group(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
        if process.poll() is None:
            strays |= _descendants(process.pid)
    finally:
        # This also runs after a second interrupt and after a normal end, since a test may have left
        # processes in the group.
        _signal_group(process.pid, signal.SIGKILL)
        for stray in strays:
            with contextlib.suppress(psutil.Error):
                stray.kill()
        process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _descendants(root: int) -> set[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return set(psutil.Process(root).children(recursive=True))
    return set()


def wait_until(process: subprocess.Popen[bytes], deadline: float, pause: float = 0.1) -> bool:
    """Sleep briefly, and return whether the process still runs before the deadline."""
    if process.poll() is not None or time.monotonic() >= deadline:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(min(pause, max(0.0, deadline - time.monotonic())))
    return True
