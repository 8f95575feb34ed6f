"""Runs the tests that proofs name in one pytest run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TextIO

from ringproof.harness.cards.proof import Proof
from ringproof.harness.proofs.given import UPSTREAM_OPTION
from ringproof.harness.proofs.outcomes import EventLog, SuiteResult
from ringproof.harness.proofs.processes import contained, wait_until

_LOG_TAIL_LINES = 6


class Progress(Protocol):
    """Receiver of the progress of a run."""

    def begin(self, phase: str, total: int | None) -> None:
        """Start a phase; ``total`` is ``None`` while the number of steps is unknown."""

    def update(self, done: int, total: int | None, failed: int, current: str) -> None:
        """Update the state of the phase."""

    def end(self) -> None:
        """End the phase."""


@dataclass(frozen=True)
class SuiteRequest:
    """Tests to run, and how.

    Attributes:
        root: Repository root, which is the working directory.
        proofs: Node ids to run, whose files exist.
        quick: Whether to leave out tests marked ``slow``.
        scratch: Folder for the event file and the output of pytest.
        deadline: Deadline on the monotonic clock.
        seconds: Time limit for the message.
        jobs: Number of parallel test processes, among which files are divided.
        upstreams: Specs of the checkouts that tests may use, by name, with absolute paths.
    """

    root: Path
    proofs: tuple[Proof, ...]
    quick: bool
    scratch: Path
    deadline: float
    seconds: float
    jobs: int = 1
    upstreams: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def run_suite(request: SuiteRequest, progress: Progress) -> SuiteResult:
    """Run the tests, follow their events, and end all processes.

    pytest gets files, and the recorder selects tests, because pytest runs nothing if a node id on
    its command line is unknown.
    """
    if not request.proofs:
        return SuiteResult({})
    events = request.scratch / "events.jsonl"
    selection = request.scratch / "select.json"
    output = request.scratch / "pytest.log"
    events.write_text("", "utf-8")
    ids = [proof.target for proof in request.proofs]
    selection.write_text(json.dumps({"ids": ids, "quick": request.quick}), "utf-8")
    log = EventLog()
    command = _command(request, events, selection)
    progress.begin("tests", None)
    try:
        with (
            output.open("wb") as stream,
            contained(command, cwd=request.root, output=stream) as process,
            events.open("r", encoding="utf-8") as lines,
        ):
            _follow(process, lines, log, deadline=request.deadline, progress=progress)
            code = process.poll()
    finally:
        progress.end()
    return log.result(_ending(code, request.seconds, output))


def _follow(
    process: subprocess.Popen[bytes],
    lines: TextIO,
    log: EventLog,
    *,
    deadline: float,
    progress: Progress,
) -> None:
    """Read events until the process ends or its time is over."""
    partial = ""
    running = True
    while running:
        running = wait_until(process, deadline)
        partial = _drain(lines.read(), partial, log)
        total = None if log.selected is None else len(log.selected)
        progress.update(log.finished, total, log.failed, log.current)


def _drain(new: str, partial: str, log: EventLog) -> str:
    *whole, rest = (partial + new).split("\n")
    for line in whole:
        log.feed(line)
    return rest


def _command(request: SuiteRequest, events: Path, selection: Path) -> list[str]:
    files: Sequence[str] = sorted({proof.file for proof in request.proofs})
    jobs = min(request.jobs, len(files)) if find_spec("xdist") else 1
    return [
        sys.executable,
        *("-m", "pytest", "-p", "ringproof.harness.proofs.recorder", "-p", "no:cacheprovider"),
        *(("-n", str(jobs), "--dist", "loadfile") if jobs > 1 else ()),
        f"--rootdir={request.root}",
        # One word each: pytest takes a separate path for a test and seeks its settings there.
        f"--ringproof-events={events}",
        f"--ringproof-select={selection}",
        *(f"{UPSTREAM_OPTION}={name}={spec}" for name, spec in request.upstreams.items()),
        *("--continue-on-collection-errors", "--maxfail=0", "-q", "--color=no", "--", *files),
    ]


def _ending(code: int | None, seconds: float, output: Path) -> str:
    """Return how the run ended, for tests that it did not finish."""
    if code is None:
        return f"the run was stopped after {seconds:g} s"
    lines = output.read_text("utf-8", "replace").splitlines()
    tail = " / ".join(line.strip() for line in lines[-_LOG_TAIL_LINES:] if line.strip())
    return f"pytest ended (exit code {code}): {tail}"[:800]
