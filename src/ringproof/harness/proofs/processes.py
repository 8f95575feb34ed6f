"""A child process that is over when we say so: its group, and whatever left its group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

_GRACE_SECONDS = 5.0
_PROC = Path("/proc")


@contextlib.contextmanager
def contained(
    command: Sequence[str], *, cwd: Path, output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in its own session; on leaving, however it happens, nothing of it remains.

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
        # Also when interrupted a second time, and also after a normal end: a test may have left
        # something behind in the group.
        _signal_group(process.pid, signal.SIGKILL)
        for pid, born in strays:
            _kill(pid, born)
        process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _kill(pid: int, born: int) -> None:
    """Kill a process, unless its number belongs to another one by now."""
    if _birth(pid) == born:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _descendants(root: int) -> set[tuple[int, int]]:
    """``(pid, start time)`` of all processes below one; empty where there is no ``/proc``."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in _PROC.glob("[0-9]*"):
        fields = _stat(int(entry.name))
        if fields is not None:
            parent, born = fields
            children.setdefault(parent, []).append((int(entry.name), born))
    found: set[tuple[int, int]] = set()
    stack = [root]
    while stack:
        for child in children.get(stack.pop(), ()):
            found.add(child)
            stack.append(child[0])
    return found


def _birth(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else fields[1]


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and start time (clock ticks since boot), or ``None`` when the process is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The command's name, in parentheses, may contain anything.
    fields = text.rpartition(")")[2].split()
    return int(fields[1]), int(fields[19])


def wait_until(process: subprocess.Popen[bytes], deadline: float, pause: float = 0.1) -> bool:
    """Sleep a little; whether the process is still running and the deadline is still ahead."""
    if process.poll() is not None or time.monotonic() >= deadline:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(min(pause, max(0.0, deadline - time.monotonic())))
    return True
