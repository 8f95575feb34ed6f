"""Run the tests that proofs name in one pytest run, and read their results from its events."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TextIO

from rich.console import Console

from ringproof.cards.proof import Proof, covers
from ringproof.extras import how_to_install
from ringproof.files import make_folder
from ringproof.programs import Process, TimeLimit, python, started, variables
from ringproof.progress import Update, progress
from ringproof.prove.anchoring import CACHE_OPTION, OFFLINE_OPTION, UPSTREAM_OPTION
from ringproof.prove.judging import LEFT_OUT, judge_proof
from ringproof.prove.results import Judged, ProofState
from ringproof.prove.resuming import test_ids
from ringproof.prove.touches import Evidence, Touch
from ringproof.upstream.sources import absolute_spec

_LOG_TAIL_LINES = 6
_GRACE_SECONDS = 5.0
_PAUSE_SECONDS = 0.1


@dataclass
class SuiteResult:
    """Results of one pytest run, which grow with the events of `recorder`.

    Attributes:
        tests: Every test that a proof names, by node id.
        problems: Outcome and reason of files and classes whose tests were not listed, by node id.
        incomplete: Why some selected tests were not run; empty if all were.
    """

    tests: dict[str, Judged] = field(default_factory=dict)
    problems: dict[str, tuple[ProofState, str]] = field(default_factory=dict)
    incomplete: str = ""
    _selected: tuple[str, ...] | None = None
    _finished: set[str] = field(default_factory=set)
    _current: str = ""
    _ended: bool = False
    _partial: str = ""

    def result(self, proof: Proof, *, own: Evidence, sources: str | None = None) -> Judged:
        """Return the result of a proof that names tests; see `judge_proof`."""
        tests = [test for test in self.tests.values() if covers(proof.target, test.id)]
        if tests:
            return judge_proof(proof.id, tests, own=own, sources=sources)
        outcome, detail = ProofState.MISSING, "names no test of this checkout"
        if self.incomplete:
            outcome, detail = ProofState.NOT_RUN, f"not run: {self.incomplete}"
        for name, problem in self.problems.items():
            # A problem of the file, of a class that contains the test, or of a folder.
            if name == proof.file or proof.target.startswith((f"{name}::", f"{name}/")):
                outcome, detail = problem
                break
        return Judged(proof.id, outcome, detail, sources=sources)

    def read(self, stream: TextIO, update: Update) -> None:
        """Read the lines that were written since the last call, and update the progress."""
        *whole, self._partial = (self._partial + stream.read()).split("\n")
        for line in whole:
            self.feed(line)
        failed = sum(self.tests[name].outcome is ProofState.FAILED for name in self._finished)
        total = None if self._selected is None else len({*self._selected, *self._finished})
        update(len(self._finished), total, failed, self._current)

    def feed(self, line: str) -> None:
        """Read one line. Incomplete lines are ignored."""
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, KeyError, TypeError):
            return
        if kind == "selected":
            self._selected = tuple(event["ids"])
        elif kind == "collect":
            self.problems[event["id"]] = (ProofState(event["outcome"]), event["detail"])
        elif kind == "start":
            self._current = event["id"]
            self.tests[event["id"]] = Judged(event["id"], ProofState.PASSED)
        elif kind == "phase":
            self.tests[event["id"]] = _after_phase(self.tests.get(event["id"]), event)
        elif kind == "finish":
            self.tests.setdefault(event["id"], Judged(event["id"], ProofState.PASSED))
            self._finished.add(event["id"])
        elif kind == "end":
            self._ended = True

    def end(self, how: str) -> None:
        """Judge the tests that did not end.

        Args:
            how: How the process ended: ``the run was stopped after 5 s``.
        """
        died = [name for name in self.tests if name not in self._finished]
        for name in died:
            detail = f"{how} while this test was running\n{self.tests[name].detail}".strip()
            self.tests[name] = replace(self.tests[name], outcome=ProofState.FAILED, detail=detail)
        not_started = [name for name in self._selected or () if name not in self.tests]
        for name in not_started:
            self.tests[name] = Judged(name, ProofState.NOT_RUN, how)
        whole = self._selected is not None and self._ended and not died and not not_started
        self.incomplete = "" if whole else how


def _after_phase(test: Judged | None, event: Mapping[str, Any]) -> Judged:
    """Return the result of a test after its set-up, call or tear-down."""
    test = test or Judged(event["id"], ProofState.PASSED)
    test = replace(
        test,
        seconds=test.seconds + event["seconds"],
        properties=tuple((name, value) for name, value in event["properties"]),
        touches=tuple(
            Touch(ran, repo, name, root, tuple(functions))
            for ran, repo, name, root, functions in event.get("touches", ())
        ),
    )
    state = ProofState(event["outcome"])
    if event["expected_failure"]:
        # An expected failure means that the property does not hold, so it is not a proof.
        state = ProofState.FAILED
    if state is ProofState.PASSED or test.outcome is ProofState.FAILED:
        return test
    if state is ProofState.SKIPPED and event["detail"] == LEFT_OUT:
        state = ProofState.LEFT_OUT
    outside = state is ProofState.FAILED and event["when"] != "call"
    detail = f"in {event['when']}: {event['detail']}" if outside else event["detail"]
    return replace(test, outcome=state, detail=detail)


@dataclass(frozen=True)
class ProveRequest:
    """Options of ``ringproof prove``.

    Attributes:
        skills: Folder of the skills. Its parent is the repository root and pytest's working
            directory; only tests below it are run.
        out: Folder for the output of pytest.
        evidence: Folder of committed records, which are compared at the start.
        timeout: Seconds for all tests together.
        jobs: Number of parallel test processes; 0 for `Environment.processes`.
        upstreams: Specs of the user's repositories by name; see `UpstreamChoice`.
        require_all: Whether upstream code that is not here is a problem of the run.
        short: What a card names and is not here, with the reason.
        resume: Whether tests that passed in the run before are taken over; see `resuming`.
    """

    skills: Path
    names: tuple[str, ...]
    quick: bool
    out: Path
    evidence: Path
    cache: Path
    offline: bool
    timeout: float
    jobs: int = 0
    upstreams: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    require_all: bool = False
    short: tuple[str, ...] = ()
    resume: bool = False

    @property
    def root(self) -> Path:
        """The repository root."""
        return self.skills.resolve().parent

    def upstream_options(self) -> Iterator[str]:
        """Yield the options by which pytest learns what it may use of upstream; see `recorder`."""
        for name, spec in self.upstreams.items():
            yield f"{UPSTREAM_OPTION}={name}={absolute_spec(spec)}"
        yield f"{CACHE_OPTION}={self.cache.resolve()}"
        yield from (OFFLINE_OPTION,) * self.offline


def run_suite(
    request: ProveRequest,
    proofs: Sequence[Proof],
    jobs: int,
    console: Console,
    before: Sequence[str] = (),
) -> SuiteResult:
    """Run the tests, follow their events, and end all processes.

    pytest gets files, and the recorder selects tests, because pytest runs nothing if a node id on
    its command line is unknown.

    Args:
        proofs: Node ids to run, whose files exist, in the order in which to start them.
        jobs: Number of parallel test processes, among which files are divided.
        before: Events of tests that are not run again; see `resuming`.
    """
    scratch = request.out.resolve()
    make_folder(scratch, field="--out")
    if not proofs:
        return SuiteResult()
    if find_spec("pytest") is None:
        return SuiteResult(incomplete=f"pytest is not installed; {how_to_install('prove')}")
    events, selection = scratch / "events.jsonl", scratch / "select.json"
    output = scratch / "pytest.log"
    events.write_text("".join(f"{line}\n" for line in before), "utf-8")
    wanted = {
        "ids": [proof.target for proof in proofs],
        "quick": request.quick,
        "done": list(test_ids(tuple(before))),
    }
    selection.write_text(json.dumps(wanted), "utf-8")
    command = [
        *python(module="pytest"),
        *("-p", "ringproof.prove.recorder", "-p", "no:cacheprovider"),
        # One word each: pytest takes a separate path for a test and seeks its settings there.
        *(f"--rootdir={request.root}", f"--ringproof-events={events}"),
        f"--ringproof-select={selection}",
        *request.upstream_options(),
        *("--continue-on-collection-errors", "--maxfail=0", "-q", "--color=no"),
        *_distributed(tuple(dict.fromkeys(proof.file for proof in proofs)), jobs),
    ]
    suite = SuiteResult()
    with (
        progress(console, "tests") as update,
        output.open("wb") as stream,
        events.open("r", encoding="utf-8") as lines,
        supervised(command, request.root, stream) as process,
    ):
        deadline = time.monotonic() + request.timeout
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(TimeLimit):
                process.wait(min(_PAUSE_SECONDS, max(deadline - time.monotonic(), 0.0)))
            suite.read(lines, update)
        code = process.poll()
    suite.end(ending(code, request.timeout, output))
    return suite


def _distributed(files: Sequence[str], jobs: int) -> Iterator[str]:
    """Yield the files, and before them how many processes divide them in this order."""
    jobs = min(jobs, len(files)) if find_spec("xdist") else 1
    if jobs > 1:
        yield from ("-n", str(jobs), "--dist", "loadfile", "--no-loadscope-reorder")
    yield from ("--", *files)


def ending(code: int | None, seconds: float, output: Path) -> str:
    """Return how a run ended, for tests that it did not finish.

    Args:
        code: Exit code of pytest; ``None`` if it was stopped after ``seconds``.
        output: File with what it wrote.
    """
    if code is None:
        return f"the run was stopped after {seconds:g} s"
    lines = output.read_text("utf-8", "replace").splitlines()
    tail = " / ".join(line.strip() for line in lines[-_LOG_TAIL_LINES:] if line.strip())
    return f"pytest ended (exit code {code}): {tail}"[:800]


@contextlib.contextmanager
def supervised(
    command: Sequence[str],
    folder: Path,
    output: IO[bytes],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process[bytes]]:
    """Run a command, and end it and all that it has started on exit, whatever their sessions are.

    It is interrupted first, so that it can close what it opened. Its output goes to a file, so that
    no pipe can fill, and its temporary files to a folder that is removed.

    Args:
        environment: Its variables; those of `variables` by default.
    """
    scratch = tempfile.TemporaryDirectory(prefix="ringproof-", ignore_cleanup_errors=True)
    with contextlib.ExitStack() as stack:  # whose steps follow even a second interrupt
        kept = {"TMPDIR": stack.enter_context(scratch)}
        kept["HYPOTHESIS_STORAGE_DIRECTORY"] = kept["TMPDIR"]  # else .hypothesis in the repository
        own = {**(environment or variables()), **kept}
        run = started(command, folder=folder, environment=own, stdout=output, supervised=True)
        process = stack.enter_context(run)
        stack.callback(_interrupt, process)
        yield process


def _interrupt(process: Process[bytes]) -> None:
    """Ask a process to end."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(TimeLimit):
            process.wait(_GRACE_SECONDS)
