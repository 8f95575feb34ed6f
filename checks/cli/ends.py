"""Ends long commands early, and looks at what they leave: `python -m checks.cli.ends --times N`.

A command is ended by each of SIGINT, SIGTERM, SIGHUP and SIGKILL at random moments, and by a limit
on the size of a file at random sizes, as a full disk would end it. It fails if it does not end
within seconds, leaves a process, a temporary file (SIGKILL may) or half of an output, or does not
say what happened in one line.

With ``--upstream git:CHECKOUT@REF``, the commands that run Megatron-LM's own program are ended too.
"""

from __future__ import annotations

import argparse
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
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

PATIENCE_SECONDS = 15
ENDED_SECONDS = 5
"""In which all that a command has started ends with it."""
ORPHANED_SECONDS = 25
"""After SIGKILL nobody is left who ends what a command has started: it has to end by itself."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
STARTED_SECONDS = 0.3
"""Before, it is Python that is starting and answers a signal in its own way."""
OLD = '{"old": true}\n'
WHOLE_SECONDS = 300
"""For a run that is not ended: proving one skill takes some 60 s on two cores."""
STORE_BYTES = 65536
"""More than the file in which the ranks of gloo meet: below it they fail or hang, not outputs."""
CACHE = "torchinductor_"
"""An empty folder that torch makes for its cache when a part of it is imported."""
CHECKPOINT = ("run.json", "random-0.pt", "random-1.pt", "tp0-pp0.pt")
"""Its files, with two ranks that hold the same tensors."""
LINES = "".join(
    f"iteration {n}/ 90000 | lm loss: 1.5E+00 | grad norm: 1.0 |\n" for n in range(90000)
)
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
        kept: Folder of the logs that it keeps, whole or not.
    """

    words: tuple[str, ...]
    whole: tuple[str, ...]
    ranks: bool = False
    growing: str = ""
    checkpoints: str = ""
    kept: str = ""


SKILLS = str(Path(__file__).parents[2] / "skills")
TRAIN = ("train", "--dp", "2", "--steps", "8", "--global-batch", "4", "--max-length", "64")
COMMANDS = (
    Command(
        (*TRAIN, "--max-tokens-per-rank", "128", "--log", "log", "--save", "kept",
         "--save-every", "1", "--json", "out.json"),
        ("out.json",), True, "log", "kept",
    ),
    Command(
        ("plan", "--lengths", "lognormal:mean=1024,sigma=1.5,max=65536,n=100000", "--ranks", "64",
         "--max-tokens-per-rank", "8192", "--json", "out.json", "--html", "out.html"),
        ("out.json", "out.html"),
    ),
    Command(("parity", "attention", "--ranks", "2", "--json", "out.json"), ("out.json",), True),
    Command(
        ("logs", "parity", "a", "b", "--json", "out.json", "--html", "out.html",
         "--png", "out.png"),
        ("out.json", "out.html", "out.png"),
    ),
    Command(("logs", "diagnose", "a", "b", "--json", "out.json"), ("out.json",)),
    Command(
        ("plan", "sweep", "--lengths", "lognormal:mean=1024,sigma=1.5,max=65536,n=20000",
         "--ranks", "64", "--max-tokens-per-rank", "8192", "--json", "out.json"),
        ("out.json",),
    ),
    Command(
        ("prove", "hierarchical-context-parallel", "--skills", SKILLS, "--quick", "--offline",
         "--json", "out.json"),
        ("out.json",), True, kept="build",
    ),
    Command(
        ("conform", "--upstream", "pip:megatron-core==0.16.1", "--offline", "--case",
         "static-p2p-cp2", "--steps", "2", "--json", "out.json"),
        ("out.json",), True,
    ),
)  # fmt: skip


def of_megatron(spec: str) -> tuple[Command, ...]:
    """Commands that run the program of a checkout, ``git:PATH@REF``."""
    smoke = ("smoke", "megatron", "--upstream", spec, "--feature", "hcp", "--device", "cpu",
             "--steps", "2", "--out", "made")  # fmt: skip
    program = (
        "--num-layers 1 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
        "--max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 2 --train-iters 2 "
        "--lr 1e-3 --tokenizer-type NullTokenizer --vocab-size 127 --mock-data --eval-iters 1 "
        "--eval-interval 9 --split 99,1,0 --context-parallel-size 2 "
        "--transformer-impl transformer_engine"
    )
    variables = ("env", "CUDA_DEVICE_MAX_CONNECTIONS=1")
    launch = (*variables, "torchrun", "--nproc-per-node", "2", "pretrain_gpt.py", *program.split())
    rehearse = ("rehearse", "--upstream", spec, "--out", "made", "--json", "out.json", "--")
    return (
        Command(smoke, (), True, kept="made"),
        Command((*rehearse, *launch), ("out.json",), True, kept="made"),
    )


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
    """Inputs of every command, and outputs of an earlier run."""
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text(LINES)
    for name in command.whole:
        (folder / name).write_text(OLD)


def half_written(folder: Path, command: Command, *, killed: bool) -> Iterator[str]:
    """What is neither the old output nor a whole new one; what was killed leaves hidden files."""
    known = {"a", "b", *command.whole, command.growing, command.checkpoints, command.kept}
    others = [path.name for path in folder.iterdir() if path.name not in known]
    yield from (f"{name} is left" for name in others if not (killed and name.startswith(".")))
    for name in command.whole:
        content = (folder / name).read_bytes()
        ends = {".json": b"}\n", ".html": b"</html>\n", ".png": b"IEND\xaeB`\x82"}
        if not content.endswith(ends[Path(name).suffix]) and content != OLD.encode():
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
    """Whether a file of a checkpoint is there to its last byte; those of tensors are archives."""
    if path.suffix == ".json":
        return path.is_file() and path.read_text().endswith("}")
    return zipfile.is_zipfile(path) and zipfile.ZipFile(path).testzip() is None


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
        written = [path for path in folder.rglob("*") if path.is_file() and path.name not in "ab"]
        return ended.seconds, max(path.stat().st_size for path in written)


def trials(command: Command, times: int, dice: random.Random) -> Iterator[tuple[int, list[str]]]:
    """End a command ``times`` times by each signal and by a full disk; yield the runs so far."""
    seconds, size = measured(command)
    moments = (dice.uniform(STARTED_SECONDS, seconds) for _ in range(times * len(SIGNALS)))
    drawn = [(SIGNALS[index % len(SIGNALS)], at, 0) for index, at in enumerate(moments)]
    least = STORE_BYTES if command.ranks else 1
    if not command.kept and least <= size:  # else ranks fail that cannot write their logs
        drawn += [(0, 0.0, dice.randint(least, size)) for _ in range(times)]
    for count, (number, after, limit) in enumerate(drawn, 1):
        yield count, trial(command, number=number, after=after, size=limit)


def main() -> int:
    """End every command; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--upstream", metavar="SPEC", help="git:CHECKOUT@REF")
    given = parser.parse_args()
    dice, bad = random.Random(given.seed), 0
    for command in (*COMMANDS, *(of_megatron(given.upstream) if given.upstream else ())):
        count = 0
        for count, wrong in trials(command, given.times, dice):  # noqa: B007
            print(*wrong, sep="\n", end="\n" if wrong else "")
            bad += bool(wrong)
        print(f"{' '.join(command.words[:2])}: {count} runs", flush=True)
    print(f"{bad} wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
