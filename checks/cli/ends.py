"""Ends commands early: `python -m checks.cli.ends rehearse --ends 20 --seed S`.

A command is ended by a signal at a random moment, by SIGKILL of one of the processes that it has
started, or by a limit on the size of a file, as a full disk would end it. It fails if it does not
end within seconds, leaves a process, a temporary file (SIGKILL may) or half of an output, or does
not say what happened in one line. ``--record`` adds the counts to a file such as `ended.json`, and
a seed that it has is not drawn again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from checks.cli.fuzz import keep, kept_of, run_on

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
RANK = "SIGKILL of a process that it started"
ITSELF = "by itself"
ROOT = Path(__file__).parents[2]
ENTRY = "import sys; sys.argv[0] = 'ringproof'; from ringproof.__main__ import start; start()"


@dataclass(frozen=True)
class Command:
    """A command that takes long, and the files that it writes.

    Attributes:
        words: Its words.
        whole: Outputs that are written at its end; they are there before, with other content.
        ranks: Whether it starts ranks.
        growing: An output in lines of JSON that grows.
        checkpoints: Folder of its checkpoints.
        logs: Folder of its logs, which end anywhere.
        fill: Puts what it reads into its folder.
        seconds: About how long it takes on two cores.
    """

    words: tuple[str, ...]
    whole: tuple[str, ...]
    ranks: bool = False
    growing: str = ""
    checkpoints: str = ""
    logs: str = ""
    fill: Callable[[Path], None] = lambda _: None
    seconds: float = 0


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code, what it said, how long it took, and what is left of it.

    Attributes:
        slow: Whether it did not end in time.
        early: Whether something ended it before its own end.
    """

    code: int
    said: str
    seconds: float
    left: tuple[str, ...]
    slow: bool = False
    early: bool = False


def run(
    command: Command,
    folder: Path,
    *,
    number: int = 0,
    after: float = 0,
    size: int = 0,
    victim: random.Random | None = None,
) -> Ended:
    """Run a command in a folder, and end it.

    Args:
        command: What to run.
        folder: Its working folder.
        number: Signal that it gets; 0 for none.
        after: Seconds after which it gets the signal.
        size: Largest size of a file in bytes; 0 for no limit.
        victim: Draws a process that the command has started, which is killed first. The command
            gets the signal if it goes on without that process for `PATIENCE_SECONDS`.
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
    output, slow, early = _output_of(process, number, after, victim)
    seconds = time.monotonic() - started
    killed = number == signal.SIGKILL
    left = tuple(_left(scratch, process.pid, ORPHANED_SECONDS if killed else ENDED_SECONDS))
    for one in left_processes(scratch, process.pid):
        one.kill()
    if slow:
        output, _ = process.communicate()
    said = output.decode(errors="replace")
    return Ended(process.returncode, said, seconds, left, slow, early)


def _output_of(
    process: subprocess.Popen[bytes], number: int, after: float, victim: random.Random | None
) -> tuple[bytes, bool, bool]:
    """End a process as `run` says; return what it wrote, and the last two fields of `Ended`."""
    try:
        return process.communicate(timeout=after if number else WHOLE_SECONDS)[0], False, False
    except subprocess.TimeoutExpired:
        pass
    if victim is not None:
        killed = _kill_one(process, victim)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=PATIENCE_SECONDS)[0], False, killed
    process.send_signal(number or signal.SIGKILL)
    try:
        return process.communicate(timeout=PATIENCE_SECONDS)[0], False, True
    except subprocess.TimeoutExpired:
        return b"", True, True


def _kill_one(process: subprocess.Popen[bytes], dice: random.Random) -> bool:
    """Kill one of the processes below another one as soon as there is one, and say if it was."""
    end = time.monotonic() + PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(process.pid).children(recursive=True)
            if below:
                dice.choice(sorted(below, key=lambda one: one.pid)).kill()
                return True
        time.sleep(0.05)
    return False


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
    """Put what the command reads into its folder, and outputs of an earlier run."""
    folder.mkdir()
    command.fill(folder)
    for name in command.whole:
        (folder / name).write_text(OLD)


def half_written(
    folder: Path, command: Command, before: frozenset[str], *, killed: bool
) -> Iterator[str]:
    """What is neither the old output nor a whole new one; what was killed leaves hidden files.

    Args:
        before: The names in the folder when the command was started.
    """
    known = {*before, command.growing, command.checkpoints, command.logs}
    others = [path.name for path in folder.iterdir() if path.name not in known]
    yield from (f"{name} is left" for name in others if not (killed and name.startswith(".")))
    for name in command.whole:
        content = (folder / name).read_bytes()
        if not content.endswith((b"}\n", b"</html>\n")) and content != OLD.encode():
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


def complaints(ended: Ended, number: int, allowed: tuple[int, ...] = ()) -> Iterator[str]:
    """What is wrong with the end of a run.

    Args:
        allowed: Further exit codes that are right.
    """
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
    elif ended.code not in (0, *allowed, 2, -number):  # before the handler, or after the end
        yield f"exit code {ended.code}: {ended.said[-200:]}"


def trial(command: Command, **given: Any) -> list[str]:
    """Run a command, end it as `run` says, and return what is wrong."""
    return ended_early(command, **given)[1]


def ended_early(
    command: Command,
    *,
    number: int = 0,
    after: float = 0,
    size: int = 0,
    victim: random.Random | None = None,
) -> tuple[bool, list[str]]:
    """Run a command, end it as `run` says; return whether it was ended, and what is wrong."""
    with tempfile.TemporaryDirectory(prefix="ringproof-ends-") as top:
        folder = Path(top).resolve() / "here"
        prepare(folder, command)
        before = frozenset(path.name for path in folder.iterdir())
        ended = run(command, folder, number=number, after=after, size=size, victim=victim)
        sent = f"signal {number}" if victim is None else RANK
        how = f"{sent} after {after:.2f} s" if number else f"files up to {size} bytes"
        killed = number == signal.SIGKILL
        allowed = (1,) if command.logs else ()
        missed = victim is not None and "ended by signal SIGKILL" in ended.said
        if command.logs and ended.code == 2 and not missed:  # a refusal at once shows nothing
            return False, [f"{' '.join(command.words[:2])} was refused: {ended.said[-300:]}"]
        wrong = [*complaints(ended, number, allowed)]
        wrong += half_written(folder, command, before, killed=killed)
        said = [f"{' '.join(command.words[:2])}, {how}: {what}" for what in wrong]
        return ended.early, said


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


def _megatron(folder: Path) -> None:
    shutil.copytree(ROOT / "examples", folder, dirs_exist_ok=True)


def _repository(folder: Path) -> None:
    for name in ("cards", "checks", "evidence", "examples", "skills", "smoke", "src", "docs"):
        left_out = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)


UPSTREAM = ("--upstream", "fetched:NVIDIA/Megatron-LM@d48bd6be0a")
COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "prove": Command(
            ("prove", "hierarchical-context-parallel", "--quick", "--offline", "--out", "logs",
             "--json", "out.json", "--html", "out.html"),
            ("out.json", "out.html"), logs="logs", fill=_repository, seconds=60,
        ),
        "smoke": Command(
            ("smoke", "megatron", *UPSTREAM, "--feature", "hcp", "--device", "cpu",
             "--ranks-per-node", "4", "--out", "logs", "--json", "out.json"),
            ("out.json",), ranks=True, logs="logs", fill=_megatron, seconds=60,
        ),
        "rehearse": Command(
            ("rehearse", "static.sh", *UPSTREAM, "--offline", "--out", "logs", "--json",
             "out.json", "--html", "out.html"),
            ("out.json", "out.html"), ranks=True, logs="logs", fill=_megatron, seconds=25,
        ),
    }
)  # fmt: skip
"""Commands that start programs of upstream, which the cache has to have."""
ENDS = (*SIGNALS, RANK)


def end(name: str, seed: int) -> tuple[str, list[str]]:
    """End a command once, by what a seed draws; return by what, and what was wrong.

    A command that ended by itself before its moment came is counted as such.
    """
    dice, command = random.Random(seed), COMMANDS[name]
    by = ENDS[seed % len(ENDS)]
    after = dice.uniform(STARTED_SECONDS, command.seconds)
    if isinstance(by, str):
        early, wrong = ended_early(command, number=signal.SIGTERM, after=after, victim=dice)
        return by if early else ITSELF, wrong
    early, wrong = ended_early(command, number=by, after=after)
    return by.name if early else ITSELF, wrong


def main() -> int:
    """End a command as often as asked, and record it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=[*COMMANDS])
    parser.add_argument("--ends", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow it")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin none after these")
    parser.add_argument("--record", type=Path, help="JSON file to which the counts are added")
    given = parser.parse_args()
    started, found = time.monotonic(), 0
    done = kept_of(given.record, given.command, run_on())["seeds"] if given.record else []
    for seed in range(given.seed, given.seed + given.ends):
        if seed in done or time.monotonic() - started > given.seconds:
            continue
        by, wrong = end(given.command, seed)
        print(f"seed {seed}, {by}: {'; '.join(wrong) or 'nothing left'}", flush=True)
        found += len(wrong)
        if given.record:
            keep(given.record, given.command, seed, Counter([by]), wrong)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
