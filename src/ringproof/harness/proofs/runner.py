"""Running the tests that proofs name, by one pytest run."""

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
    """Someone who is told how far a run has come."""

    def begin(self, phase: str, total: int | None) -> None:
        """A phase starts; ``total`` is ``None`` while the number of steps is unknown."""

    def update(self, done: int, total: int | None, failed: int, current: str) -> None:
        """The state of the phase, as often as it may have changed."""

    def end(self) -> None:
        """The phase is over."""


@dataclass(frozen=True)
class SuiteRequest:
    """What pytest is to run.

    Attributes:
        root: The repository root, the working directory.
        proofs: The node ids wanted; their files exist.
        quick: Leave out tests marked ``slow``.
        scratch: A folder for the event file and pytest's own output.
        deadline: On the monotonic clock.
        seconds: What the deadline was made from, for the message.
        jobs: Test processes side by side; files are divided among them.
        upstreams: Specs of the checkouts that tests may use, by name; no relative paths.
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
    """Run the tests, follow their events, and leave no process behind.

    Files are passed to pytest and tests are chosen by the recorder: an unknown node id on the
    command line would make pytest run nothing at all.
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
    """Feed the log until the process or its time is over."""
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
    """How the run ended, for the tests that it did not finish."""
    if code is None:
        return f"the run was stopped after {seconds:g} s"
    lines = output.read_text("utf-8", "replace").splitlines()
    tail = " / ".join(line.strip() for line in lines[-_LOG_TAIL_LINES:] if line.strip())
    return f"pytest ended (exit code {code}): {tail}"[:800]
