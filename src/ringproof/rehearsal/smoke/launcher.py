"""Starts both programs of a pair, one after the other, and says how they get on."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ringproof.budget import Estimate, EstimatePart
from ringproof.errors import InputError
from ringproof.programs import Process, TimeLimit, started, variables
from ringproof.rehearsal.runs.watch import tail
from ringproof.rehearsal.smoke.commands import environment, torchrun
from ringproof.rehearsal.smoke.pair import Pair, PairProgram

POLL_SECONDS = 1.0
ITERATION = re.compile(r"iteration\s+(\d+)/\s*(\d+)")
_HELD_BYTES = 260 << 20
"""Memory that a rank takes, apart from what any rank takes: 280 MB in all were measured."""
LAUNCHER_LOG = "torchrun.log"

Progress = Callable[[str, str], None]


def require_gpus(ranks: int) -> None:
    """Refuse a machine on which upstream cannot run on GPUs.

    Raises:
        InputError: There are fewer GPUs than ranks, or Transformer Engine is not installed.
    """
    import torch

    remedy = "run on such a machine, or rehearse the same pair with --device cpu"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < ranks:
        raise InputError(
            "--ranks-per-node", f"{ranks} ranks need as many GPUs, and {count} are here; {remedy}"
        )
    if importlib.util.find_spec("transformer_engine") is None:
        sentence = f"cuda needs Transformer Engine, which is not installed; {remedy}"
        raise InputError("--device", sentence)


def estimate(ranks: int) -> Estimate:
    """Estimate what the ranks need that run with stand-ins on this machine."""
    held = EstimatePart("--ranks-per-node", ranks, ranks * _HELD_BYTES)
    return Estimate(ranks, (held,), "--ranks-per-node", ranks)


def run_pair(pair: Pair, *, timeout: float, progress: Progress) -> list[str]:
    """Run the programs on this machine, after removing the logs of an earlier run.

    Returns:
        Why a program did not run through, one sentence each.
    """
    # The ranks run in the folder of their logs, so that no module in the current folder is theirs.
    pair = replace(pair, setting=replace(pair.setting, folder=pair.setting.folder.absolute()))
    for program in pair.started:
        shutil.rmtree(pair.folder(program), ignore_errors=True)
    found = [(program.name, _run(pair, program, timeout, progress)) for program in pair.started]
    return [f"feature {name}: {problem}" for name, problem in found if problem]


def _run(pair: Pair, program: PairProgram, timeout: float, progress: Progress) -> str:
    folder = pair.folder(program)
    folder.mkdir(parents=True, exist_ok=True)
    phase, started = f"feature {program.name}, {pair.setting.ranks} ranks", time.monotonic()
    progress(phase, "starts")
    with _launcher(torchrun(pair, program), environment(pair, program), folder) as process:
        while process.poll() is None:
            seconds = time.monotonic() - started
            if seconds > timeout:
                return f"not finished after {timeout:g} s"
            progress(phase, f"{seconds:3.0f} s, {_step(folder)}")
            time.sleep(POLL_SECONDS)
    return failure(folder) if process.returncode else ""


@contextlib.contextmanager
def _launcher(
    words: Sequence[str], own: Mapping[str, str], folder: Path
) -> Iterator[Process[bytes]]:
    """Run a launcher, and end it and its ranks on exit: it ends them itself on SIGTERM."""
    # Ranks that are ended do not remove their temporary files, so that we do it for them.
    scratch = tempfile.TemporaryDirectory(prefix="ringproof-smoke-")
    with scratch, (folder / LAUNCHER_LOG).open("w") as log:
        environment = {**variables(), **own, "TMPDIR": scratch.name}
        with started(
            words, folder=folder, environment=environment, stdout=log, supervised=True
        ) as process:
            try:
                yield process
            finally:
                _end(process)


def _end(process: Process[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeLimit):
            process.wait(timeout=40)  # the launcher gives ranks 30 s


def rank_logs(folder: Path) -> list[Path]:
    """Return what the ranks printed: one file for standard output and one for errors of each."""
    return sorted([*folder.rglob("stdout.log"), *folder.rglob("stderr.log")])


def failure(folder: Path) -> str:
    """Return what the rank printed last that failed first, as its launcher tells."""
    told = re.findall(r"Root Cause.*?local_rank: (\d+)\)", tail(folder / LAUNCHER_LOG), re.DOTALL)
    names = [path for path in folder.rglob("stderr.log") if path.parent.name in told[-1:]]
    for path in (*names, folder / LAUNCHER_LOG):
        lines = [
            line for line in tail(path).splitlines() if re.match(r"[\w.]*Error\b|.*: error", line)
        ]
        if lines:
            return f"rank {path.parent.name} ended with: {lines[-1].strip()}" if told else lines[-1]
    return f"the launcher failed; see {folder / LAUNCHER_LOG}"


def _step(folder: Path) -> str:
    found = [step for path in rank_logs(folder) for step in ITERATION.findall(tail(path))]
    return f"step {found[-1][0]} of {found[-1][1]} is done" if found else "before the first step"
