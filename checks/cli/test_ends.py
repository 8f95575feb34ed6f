"""A command that is ended early leaves nothing behind.

A command is ended by each of SIGINT, SIGTERM, SIGHUP and SIGKILL at random moments, and by a limit
on the size of a file at random sizes, as a full disk would end it. It fails if it does not end
within seconds, leaves a process, a temporary file (SIGKILL may) or half of an output, or does not
say what happened in one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

PATIENCE_SECONDS = 40
ENDED_SECONDS = 5
"""In which all that a command has started ends with it."""
ORPHANED_SECONDS = 40
"""After SIGKILL nobody is left who ends what a command has started: it has to end by itself."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
STARTED_SECONDS = 0.3
"""Before, it is Python that is starting and answers a signal in its own way."""
OLD = '{"old": true}\n'
WHOLE_SECONDS = 120
"""For a run that is not ended."""
STORE_BYTES = 65536
"""More than the file in which the ranks of gloo meet: below it they fail or hang, not outputs."""
CACHE = "torchinductor_"
"""An empty folder that torch makes for its cache when a part of it is imported."""
CHECKPOINT = ("run.json", "random-0.tensors", "random-1.tensors", "tp0-pp0.tensors")
"""Its files, with two ranks that hold the same tensors."""
ENTRY = "import sys; sys.argv[0] = 'ringproof'; from ringproof.cli.main import main; main()"


@dataclass(frozen=True)
class Command:
    """A command that takes long, and the files that it writes.

    Attributes:
        words: Its words.
        whole: Outputs that are written at its end; they are there before, with other content.
        ranks: Whether it starts ranks.
        growing: An output in lines of JSON that grows.
        checkpoints: Folder of its checkpoints.
    """

    words: tuple[str, ...]
    whole: tuple[str, ...]
    ranks: bool = False
    growing: str = ""
    checkpoints: str = ""


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code, what it said, how long it took, and what is left of it."""

    code: int
    said: str
    seconds: float
    left: tuple[str, ...]
    slow: bool = False


def run(
    command: Command, folder: Path, *, number: int = 0, after: float = 0, size: int = 0
) -> Ended:
    """Run a command in a folder, and end it.

    Args:
        command: What to run.
        folder: Its working folder.
        number: Signal that it gets; 0 for none.
        after: Seconds after which it gets the signal.
        size: Largest size of a file in bytes; 0 for no limit.
    """
    scratch = folder.parent / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"}

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # xdist's workers ignore it
        if size:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", ENTRY, *command.words],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, preexec_fn=prepare, start_new_session=True,
    )  # fmt: skip
    slow, output = False, b""
    try:
        output, _ = process.communicate(timeout=after if number else WHOLE_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(number or signal.SIGKILL)
        try:
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            slow = True
    seconds = time.monotonic() - started
    killed = number == signal.SIGKILL
    left = tuple(_left(scratch, process.pid, ORPHANED_SECONDS if killed else ENDED_SECONDS))
    for one in left_processes(scratch, process.pid):
        one.kill()
    if slow:
        output, _ = process.communicate()
    return Ended(process.returncode, output.decode(errors="replace"), seconds, left, slow)


def left_processes(scratch: Path, session: int) -> list[psutil.Process]:
    """Processes that the run started and that are still there."""
    found = []
    for one in psutil.process_iter():
        try:
            known = one.environ().get("TMPDIR", "").startswith(str(scratch))
            mine = os.getsid(one.pid) == session or known
            if mine and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except (psutil.Error, OSError):
            continue
    return found


def _left(scratch: Path, session: int, seconds: float) -> Iterator[str]:
    end = time.monotonic() + seconds
    while left_processes(scratch, session) and time.monotonic() < end:
        time.sleep(0.05)
    yield from (f"process {one.pid}" for one in left_processes(scratch, session))
    for path in scratch.iterdir():
        if not path.name.startswith(CACHE) or any(path.iterdir()):
            yield path.name


def prepare(folder: Path, command: Command) -> None:
    """Outputs of an earlier run."""
    folder.mkdir()
    for name in command.whole:
        (folder / name).write_text(OLD)


def half_written(folder: Path, command: Command, *, killed: bool) -> Iterator[str]:
    """What is neither the old output nor a whole new one; what was killed leaves hidden files."""
    known = {*command.whole, command.growing, command.checkpoints}
    others = [path.name for path in folder.iterdir() if path.name not in known]
    yield from (f"{name} is left" for name in others if not (killed and name.startswith(".")))
    for name in command.whole:
        content = (folder / name).read_bytes()
        if not content.endswith(b"}\n") and content != OLD.encode():
            yield f"{name} is half written"
    log = folder / command.growing
    if command.growing and log.exists():
        yield from _bad_lines(log)
    if command.checkpoints and (folder / command.checkpoints / "latest").exists():
        kept = folder / command.checkpoints
        newest = kept / (kept / "latest").read_text().strip()
        yield from (
            f"{name} of the newest checkpoint is half written"
            for name in CHECKPOINT
            if not _is_whole(newest / name)
        )


def _is_whole(path: Path) -> bool:
    """Whether a file of a checkpoint is there to its last byte; tensors are followed by a hash."""
    if path.suffix == ".json":
        return path.is_file() and path.read_text().endswith("}")
    data = path.read_bytes() if path.is_file() else b""
    return data[-32:] == hashlib.sha256(data[:-32]).digest()


def _bad_lines(log: Path) -> Iterator[str]:
    for line in log.read_text().splitlines(keepends=True):
        try:
            json.loads(line)
            whole = line.endswith("\n")
        except ValueError:
            whole = False
        if not whole:
            yield f"a line of {log.name} is half written"


def complaints(ended: Ended, number: int) -> Iterator[str]:
    """What is wrong with the end of a run."""
    killed = number == signal.SIGKILL
    if ended.slow:
        yield f"did not end within {PATIENCE_SECONDS} s"
    if "Traceback" in ended.said:
        yield f"traceback: {ended.said[-400:]}"
    if ended.left and not (killed and not any("process" in name for name in ended.left)):
        yield f"left {', '.join(ended.left)}"
    if ended.code == 128 + number and number:
        if f"interrupted by {signal.Signals(number).name}: " not in ended.said:
            yield f"did not say so: {ended.said[-200:]}"
    elif ended.code not in (0, 2, -number):  # before the handler is there, or after the end
        yield f"exit code {ended.code}: {ended.said[-200:]}"


def trial(command: Command, *, number: int = 0, after: float = 0, size: int = 0) -> list[str]:
    """Run a command, end it as said, and return what is wrong."""
    with tempfile.TemporaryDirectory(prefix="ringproof-ends-") as top:
        folder = Path(top).resolve() / "here"
        prepare(folder, command)
        ended = run(command, folder, number=number, after=after, size=size)
        how = f"signal {number} after {after:.2f} s" if number else f"files up to {size} bytes"
        killed = number == signal.SIGKILL
        wrong = [*complaints(ended, number), *half_written(folder, command, killed=killed)]
        return [f"{' '.join(command.words[:2])}, {how}: {what}" for what in wrong]


def measured(command: Command) -> tuple[float, int]:
    """The seconds of a whole run, and the size of its largest file in bytes."""
    with tempfile.TemporaryDirectory(prefix="ringproof-ends-") as top:
        folder = Path(top).resolve() / "here"
        prepare(folder, command)
        ended = run(command, folder)
        if ended.code:
            raise RuntimeError(f"{command.words}: {ended.said}")
        written = [path for path in folder.rglob("*") if path.is_file()]
        return ended.seconds, max(path.stat().st_size for path in written)


def trials(command: Command, times: int, dice: random.Random) -> Iterator[tuple[int, list[str]]]:
    """End a command ``times`` times by each signal and by a full disk; yield the runs so far."""
    seconds, size = measured(command)
    moments = (dice.uniform(STARTED_SECONDS, seconds) for _ in range(times * len(SIGNALS)))
    drawn = [(SIGNALS[index % len(SIGNALS)], at, 0) for index, at in enumerate(moments)]
    least = STORE_BYTES if command.ranks else 1
    if least <= size:
        drawn += [(0, 0.0, dice.randint(least, size)) for _ in range(times)]
    for count, (number, after, limit) in enumerate(drawn, 1):
        yield count, trial(command, number=number, after=after, size=limit)


TRAIN = Command(
    ("train", "--dp", "2", "--steps", "8", "--global-batch", "4", "--max-length", "64",
     "--max-tokens-per-rank", "128", "--log", "log", "--save", "kept", "--save-every", "1",
     "--json", "out.json"),
    ("out.json",), True, "log", "kept",
)  # fmt: skip
PLAN = Command(
    ("plan", "--lengths", "lognormal:mean=1024,sigma=1.5,max=65536,n=60000", "--ranks", "64",
     "--max-tokens-per-rank", "8192", "--json", "out.json"),
    ("out.json",),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", [TRAIN, PLAN], ids=["train", "plan"])
def test_ended_early(command: Command) -> None:
    done = list(trials(command, 1, random.Random(15)))
    assert len(done) == len(SIGNALS) + 1
    assert [wrong for _, found in done for wrong in found] == []


def script(text: str) -> str:
    return f"import atexit, os, pathlib, signal, subprocess, sys, tempfile, time\n{text}"


WAITS = "print('waits', flush=True); time.sleep(60)"
IGNORES = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"
SAYS = (
    "def end(*_): print('interrupted by SIGTERM: x'); sys.exit(143)\n"
    f"signal.signal(signal.SIGTERM, end); {WAITS}"
)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (SAYS, ""),
        (IGNORES, "did not end within 1 s"),
        (SAYS.replace("interrupted", "ended"), "did not say so"),
        (f"tempfile.mkstemp()\n{SAYS}", "left tmp"),
        (f"subprocess.Popen(['sleep', '60'])\n{SAYS}", "left process"),
        (f"print('Traceback (most recent')\n{SAYS}", "traceback"),
        (SAYS.replace("143", "3"), "exit code 3"),
        (f"pathlib.Path('out.json').write_text('{{')\n{SAYS}", "out.json is half written"),
        (f"pathlib.Path('log').write_text('{{}}\\n{{')\n{SAYS}", "a line of log is half written"),
        (f"pathlib.Path('.out').touch()\n{SAYS}", ".out is left"),
        (f"os.mkdir('kept'); pathlib.Path('kept/latest').write_text('a')\n{SAYS}", "run.json of"),
    ],
)
def test_what_is_wrong_is_seen(does: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ENTRY", script(does))
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE_SECONDS", 1)
    monkeypatch.setattr(sys.modules[__name__], "ENDED_SECONDS", 1)
    command = Command((), ("out.json",), growing="log", checkpoints="kept")
    wrong = trial(command, number=signal.SIGTERM, after=0.7)
    assert any(said in found for found in wrong) if said else wrong == []
