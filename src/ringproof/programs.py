"""Start other programs so that no file in the current folder is run.

No other module of the package starts programs; `supervisor` runs in between and ends them.

ringproof is often run in a folder of somebody else, as the GitHub action runs in a pull request's
files. ``python -m`` and ``python -c`` put the current folder in front of the import path, where a
``pip.py`` or a ``struct.py`` is imported in place of the real one, and an empty entry of ``PATH``
or ``PYTHONPATH`` means the current folder, too. So a Python is started by `python`, a program is
found by `program`, variables come from `variables`, and ranks from `forking`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

# ``-c`` puts the current folder on the path as "". Python 3.11 and later leave it out with ``-P``;
# earlier ones have no such option without losing PYTHONPATH, which is where users may have torch.
# The builtin ``sys`` is the only import before "" is gone. The folder of this package is last, so
# that nothing in it can stand in for a module of the standard library.
_NO_FOLDER = ("-P",) if sys.version_info >= (3, 11) else ()
_PREPARE = "import sys; sys.path[:] = [*filter(None, sys.path), {package!r}]; "
_RUN_MODULE = "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
_PACKAGE = str(Path(__file__).resolve().parents[1])
_SUPERVISOR = str(Path(__file__).resolve().with_name("supervisor.py"))
_ENDING_SECONDS = 12.0
"""What a supervisor takes at most to end what a command has started."""
_MARK = "RINGPROOF_STARTED"
"""Variable of what a supervisor ends, by which it is found where the supervisor was killed."""
# Both make Python read commands from a terminal or a file before or after a program.
_INTERACTIVE = ("PYTHONINSPECT", "PYTHONSTARTUP")

Process = subprocess.Popen
"""A program that was started."""
TimeLimit = subprocess.TimeoutExpired
"""Raised by `Process.wait` and `Process.communicate`."""
PIPE = subprocess.PIPE
MERGED = subprocess.STDOUT
"""Errors go where the output goes."""


class Ended(NamedTuple):
    """How a program ended: its exit code, ``None`` after a time limit; its output and messages."""

    code: int | None
    out: str
    log: str


def ended_by(code: int) -> str:
    """Say what ended a process, from its exit code, which is negative after a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"


def python(*, module: str = "", code: str = "") -> list[str]:
    """Return the first words of a command that runs a module or code in a Python like this one.

    The current folder is not on its import path, while ``PYTHONPATH`` and this package are.
    """
    run = _RUN_MODULE.format(module=module) if module else code
    return [sys.executable, *_NO_FOLDER, "-c", _PREPARE.format(package=_PACKAGE) + run]


def program(name: str) -> str | None:
    """Return the path of a program that is installed, and not one in the current folder."""
    return shutil.which(name, path=_absolute(os.environ.get("PATH", os.defpath)))


def variables(without: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of this process, in which no search path has the current folder.

    Empty entries, which ``PYTHONPATH=$PYTHONPATH:/more`` makes by mistake, are left out. Relative
    entries become absolute, so that a program may start in another folder.

    Args:
        without: Beginnings of names to leave out.
    """
    left_out = (*without, *_INTERACTIVE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    for name, value in kept.items():
        if name in ("PATH", "PYTHONPATH"):
            kept[name] = _absolute(value)
    return kept


def _absolute(paths: str) -> str:
    return os.pathsep.join(str(Path(one).absolute()) for one in paths.split(os.pathsep) if one)


@contextlib.contextmanager
def started(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = MERGED,
    supervised: bool = False,
    pass_fds: Sequence[int] = (),
    **settings: Any,
) -> Iterator[subprocess.Popen[Any]]:
    """Run a command in a session of its own, and kill all that is left of the session on exit.

    Args:
        folder: Where it runs; the current folder by default.
        environment: All its variables; `variables` by default.
        supervised: Whether all that it starts ends with it or with this process, in whatever
            session and however this process ends. The process is then that of
            `ringproof.supervisor`, which ends as the command does. Where that one is killed, what
            it was to end is known by a variable of its environment.
        pass_fds: File descriptors that it inherits.
        settings: Further arguments of `subprocess.Popen`.

    Raises:
        OSError: The command cannot be started.
    """
    watched, held = os.pipe() if supervised else (-1, -1)
    mark = f"{os.getpid()}-{uuid.uuid4().hex}"
    own = {**(variables() if environment is None else environment)}
    if supervised:
        own[_MARK] = mark
        command = [sys.executable, "-I", "-S", _SUPERVISOR, str(watched), *command]
        pass_fds = (*pass_fds, watched)
    with contextlib.ExitStack() as stack:
        stack.callback(_close, held)
        try:
            process = subprocess.Popen(
                [*command],
                cwd=folder,
                env=own,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=pass_fds,
                **settings,
            )
        finally:
            _close(watched)
        try:
            yield process
        finally:
            stack.close()
            _end(process, _ENDING_SECONDS if supervised else 0.0)
            if supervised and process.returncode == -signal.SIGKILL:
                _end_marked(f"{_MARK}={mark}".encode())


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _end(process: subprocess.Popen[Any], seconds: float) -> None:
    """Kill what is left of a session, after some seconds in which its supervisor does that."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _end_marked(variable: bytes) -> None:
    """Kill all processes that have a variable, for `_ENDING_SECONDS` at most."""
    latest = time.monotonic() + _ENDING_SECONDS
    while (left := _marked(variable)) and time.monotonic() < latest:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _marked(variable: bytes) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # processes of others, and those that have ended
            if variable in place.read_bytes().split(b"\0"):
                found.append(int(place.parent.name))
    return found


def run(
    command: Sequence[str], *, feed: str = "", seconds: float | None = None, **settings: Any
) -> Ended:
    """Run a command to its end, or end it after ``seconds``.

    Args:
        feed: Standard input.
        settings: Further arguments of `started`.
    """
    pipes: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, **settings}
    with started(command, text=True, errors="replace", **pipes) as process:
        try:
            out, log = process.communicate(feed, timeout=seconds)
        except subprocess.TimeoutExpired:
            return Ended(None, "", "")
        return Ended(process.returncode, out or "", log or "")


def forking(
    preload: Sequence[str], more: Mapping[str, str] = MappingProxyType({})
) -> ForkServerContext:
    """Return a context of `multiprocessing` whose server of forks runs.

    The standard library starts that server by ``python -c`` once in a process. It is started in
    the root folder, in which only an administrator can put modules; its forks change to the folder
    and the import path of this process. SIGINT, which a terminal sends to all of them, is blocked
    in server and forks: this process ends them.

    Args:
        preload: Modules that the server imports.
        more: Variables of the server, in addition to those of this process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    before, wanted, folder = dict(os.environ), {**variables(), **more}, Path.cwd()
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        os.environ.clear()
        os.environ.update(wanted)
        os.chdir("/")
        resource_tracker.ensure_running()  # by ``python -c``, too; it unblocks SIGINT
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        forkserver.ensure_running()
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
    return context


def limit_of_server() -> OSError | None:
    """Return the limit of the machine for which the server of forks has ended, where it says so."""
    server = getattr(forkserver, "_forkserver", None)
    pid = getattr(server, "_forkserver_pid", None)
    ended = pid and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # the library reaps it
    number = ended.si_status if ended and ended.si_code == os.CLD_EXITED else 0
    return OSError(number, os.strerror(number)) if number > 1 else None


def leave_server_of_forks() -> None:
    """Let the server of forks end, in one of its forks, as soon as whoever started it has ended.

    Each fork keeps the server alive, even one that is stopped and ends only with the server.
    """
    server = getattr(forkserver, "_forkserver", None)
    with contextlib.suppress(OSError, TypeError):
        os.close(getattr(server, "_forkserver_alive_fd", None))  # type: ignore[arg-type] # TypeError
