"""Run a command; when it ends, or whoever started it does, end all that it has started.

``python -I -S supervisor.py DESCRIPTOR COMMAND...`` is what `programs.started` runs. DESCRIPTOR is
the reading end of a pipe whose other end only the starter has: it closes when the starter asks for
the end or was killed. Processes that leave the session of the command, such as daemons, stay below
this process, since the kernel makes it the parent of each orphan among its descendants. It imports
nothing of this package and runs no code of the command, so that it starts in 0.02 s and stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Collection, Iterator

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)
_NOT_STARTED = 127
_READ_BYTES = 4096
_PATIENCE, _PAUSE = 10.0, 0.002
"""Seconds for which killed processes are waited for, and between two looks."""


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Let the kernel make this process the parent of each orphan among its descendants."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> set[int]:
    """Return the ids of all processes below this one."""
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 # pathlib takes 30 ms
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stream:  # noqa: PTH123
            parents[int(name)] = int(stream.read().rpartition(b")")[2].split()[1])
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def end_descendants(kept: Collection[int] = ()) -> dict[int, int]:
    """Kill all processes below this one, and wait for `_PATIENCE` until they have ended.

    Args:
        kept: Processes that stay.

    Returns:
        The wait status of each child of this process that ended.
    """
    ended: dict[int, int] = {}
    latest = time.monotonic() + _PATIENCE
    while (left := descendants().difference(kept)) and time.monotonic() < latest:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:  # those that are not children yet become so when their parent has ended
            with contextlib.suppress(ChildProcessError):
                done, status = os.waitpid(pid, os.WNOHANG)
                ended |= {done: status} if done else {}
        time.sleep(_PAUSE)
    return ended


def main() -> None:
    """Run the command, and end as it ended."""
    watched, command = int(sys.argv[1]), sys.argv[2:]
    adopt_orphans()
    end_with_parent(signal.SIGCONT)  # which wakes it if it was stopped
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as it is under nohup
            signal.signal(number, lambda *_: None)
    # One that arrives before the command can get it waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    own, child = os.getpid(), os.fork()
    if child == 0:
        _become(command, own, watched)
    # The command gets SIGINT and SIGHUP with its session; SIGTERM is often sent to one process.
    signal.signal(signal.SIGTERM, lambda *_: _send(child, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 # pipes of the command close with it
        if int(name) > 2 and int(name) not in (watched, woken, wake):
            with contextlib.suppress(OSError):
                os.close(int(name))
    status = _wait(child, watched, woken)
    ended = end_descendants()
    _end(ended.get(child, 0) if status is None else status)


def _become(command: list[str], parent: int, watched: int) -> None:
    """Run the command in this process, with signals as they usually are."""
    end_with_parent()
    if os.getppid() != parent:
        os._exit(_NOT_STARTED)
    os.close(watched)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps that
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"error: {command[0]} cannot be started ({error.strerror})\n".encode())
    os._exit(_NOT_STARTED)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(child: int, watched: int, woken: int) -> int | None:
    """Return how the command ended, or ``None`` once the starter wants the end."""
    events = select.poll()
    for descriptor in (watched, woken):
        events.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in events.poll()]
        if woken in ready:
            os.read(woken, _READ_BYTES)
        ended = dict(_ended())
        if child in ended or watched in ready:
            return ended.get(child)


def _ended() -> Iterator[tuple[int, int]]:
    """Yield the children that have ended, orphans included, with their wait statuses."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _end(status: int) -> None:
    """End with the exit code, or by the signal, of the command."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number = os.WTERMSIG(status)
    with contextlib.suppress(OSError, ValueError):  # the handler of SIGKILL cannot be set
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
