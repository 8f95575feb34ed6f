"""What programs that are started get of this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ringproof.programs import PIPE, ended_by, python, run, started, variables

FORK = """
from ringproof.programs import forking
process = forking(["json"], {"MORE": "more"}).Process(target=exec, args=(SAYS,))
process.start()
process.join()
"""
SAYS = "import os; print(*map(os.environ.get, ('SEEN', 'MORE', 'PYTHONSTARTUP')), flush=True)"


def test_variables_reach_the_forks(tmp_path: Path) -> None:
    """The server of forks needs the search paths of modules and libraries when it starts."""
    given = {**variables(), "SEEN": "seen", "PYTHONSTARTUP": str(tmp_path)}
    done = run(python(code=FORK.replace("SAYS", repr(SAYS))), seconds=60, environment=given)
    assert done.out.split() == ["seen", "more", "None"], done


def test_ctrl_c_reaches_no_server_of_forks(tmp_path: Path) -> None:
    """A terminal sends it to all processes; the server said so while it imported modules."""
    (tmp_path / "json_of_mine.py").write_text("import os; os.kill(os.getpid(), 2)\n")
    given = {**variables(), "PYTHONPATH": str(tmp_path), "SEEN": "seen"}
    code = FORK.replace("json", "json_of_mine").replace("SAYS", repr(SAYS))
    done = run(python(code=code), seconds=60, environment=given, preexec_fn=_hear_interrupts)
    assert (done.code, done.out.split(), done.log) == (0, ["seen", "more", "None"], "")


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # xdist's workers ignore it


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal SIGKILL"), (-40, "signal 40")],
)
def test_what_ended_a_process_is_said(code: int, text: str) -> None:
    """Real-time signals between the first and the last have no name in Python."""
    assert ended_by(code) == text


DAEMON = """
import os, signal, time
if os.fork():
    os.wait()
else:
    os.setsid()
    daemon = os.fork()
    if daemon:
        print(daemon, flush=True)
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
"""
"""A process starts another, which outlives it in a session of its own."""
STARTER = f"""
import os, signal, time
from ringproof.programs import python, started
with started(python(code={DAEMON + "time.sleep(60)"!r}), supervised=True, stdout=1) as process:
    time.sleep(60)
"""


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _gone(*pids: int) -> bool:
    deadline = time.monotonic() + 10
    while any(map(_runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(_runs, pids))


@pytest.mark.parametrize("end", ["", "time.sleep(60)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_daemon_ends_with_what_started_it(end: str) -> None:
    """It is ended by itself, by us, or by a signal."""
    with started(python(code=DAEMON + end), supervised=True, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        daemon = int(process.stdout.readline())
        if "sleep" not in end:
            process.wait()
            assert _gone(daemon)
    assert _gone(daemon)


def test_a_daemon_ends_where_the_process_that_watches_it_was_killed() -> None:
    end = "os.kill(os.getppid(), signal.SIGKILL)"
    with started(python(code=DAEMON + end), supervised=True, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        daemon = int(process.stdout.readline())
        assert process.wait(30) == -signal.SIGKILL
        assert _runs(daemon)
    assert _gone(daemon)


@pytest.mark.parametrize("stops", ["", "command", "supervisor"])
def test_a_daemon_ends_when_this_process_is_killed(stops: str) -> None:
    """Also where the command, or the process that watches it, has been stopped."""
    command = [sys.executable, "-c", STARTER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        daemon = int(process.stdout.readline())
        supervisor = psutil.Process(process.pid).children()[0]
        started = supervisor.children()[0]
        if stops:
            {"command": started, "supervisor": supervisor}[stops].suspend()
        assert _runs(daemon)
        process.kill()
    assert _gone(daemon, supervisor.pid, started.pid)


@pytest.mark.parametrize(
    ("code", "ended"),
    [("raise SystemExit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getppid(), 9)", -9)],
)
def test_a_supervised_command_ends_as_it_would_alone(code: str, ended: int) -> None:
    """The last one kills the process that watches it."""
    with started(python(code=f"import os; {code}"), supervised=True) as process:
        assert process.wait(30) == ended


def test_signals_reach_a_supervised_command() -> None:
    # In the background of a shell SIGINT is ignored, and programs inherit that.
    ready = "signal.signal(2, signal.default_int_handler); print(1, flush=True); "
    waits = f"import signal, time; signal.signal(15, lambda *_: exit(5)); {ready}"
    command = python(code=waits + "time.sleep(60)")
    with started(command, supervised=True, stdout=PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 5
    with started(command, supervised=True, stdout=PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
