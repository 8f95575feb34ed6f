"""Runs the proofs of statements with edits that make them false, and expects a failure."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from ringproof.cards import Card, Proof, ProofKind, Statement, find_cards, load_card, statements
from ringproof.errors import InputError, shown
from ringproof.files import claimed, make_folder
from ringproof.programs import python, variables
from ringproof.progress import progress
from ringproof.prove.closure import SourceClosure
from ringproof.prove.environment import Environment
from ringproof.prove.evidence import executed_statements, recorded_proofs
from ringproof.prove.results import ProofState
from ringproof.prove.suite import ProveRequest, SuiteResult, ending, supervised
from ringproof.prove.touches import Evidence
from ringproof.refuting.editing import (
    EDITS_OPTION,
    EditedFiles,
    EditError,
    UpstreamFiles,
    write_overlay,
)
from ringproof.refuting.outcomes import Fate, Refuted, proof_sources
from ringproof.refuting.refutations import (
    Excuse,
    Refutations,
    load_refutations,
    refutation_digest,
)
from ringproof.upstream.sources import UpstreamChoice
from ringproof.upstream.tree import UpstreamError, UpstreamUnavailable
from ringproof.upstream.wanted import WHEELS_FILE, read_wheels

_ERROR = re.compile(r"^E\s+(.*\S)", re.MULTILINE)
# A module of upstream that cannot be imported says nothing about the statement.
_NOT_LOADED = re.compile(r"\b(ImportError|ModuleNotFoundError|SyntaxError|NameError)\b")
# How `SuiteResult` tells of failures that are not in the call of a test.
_OUTSIDE, _DIED = ("in setup:", "in teardown:"), " while this test was running"
_PAUSE_SECONDS = 0.2
_LONGEST = 300


@dataclass(frozen=True)
class _Attempt:
    """A refutation that is tried.

    Attributes:
        proofs: Node ids of tests, in the order in which they run.
    """

    skill: str
    statement: Statement
    digest: str
    files: EditedFiles
    proofs: tuple[str, ...]

    def result(self, outcome: Fate, **details: object) -> Refuted:
        return Refuted(self.statement.id, outcome, self.digest, **details)  # type: ignore[arg-type]


_Run = Generator[Refuted | None, None, None]
"""Tests that run; see `_try`."""


def refute(
    request: ProveRequest, environment: Environment, chosen: Sequence[str], console: Console
) -> Mapping[str, tuple[Refuted, ...]]:
    """Try the refutations of skills, and return what became of them, by skill.

    A statement is left out if no committed record says that its proofs execute upstream's code,
    and it has neither a refutation nor an excuse.

    Args:
        environment: This machine and checkout.
        chosen: Ids of statements; all if empty.

    Raises:
        InputError: A skill or statement is unknown, or a card or its refutations are not valid.
    """
    paths = find_cards(request.skills, request.names)
    found: dict[str, dict[str, Refuted]] = {}
    attempts: list[_Attempt] = []
    unknown = set(chosen)
    for skill, path in paths.items():
        card = load_card(path)
        said = statements(card)
        unknown -= {one.id for one in said}
        planned = _plan(request, skill, card, load_refutations(path, said), chosen)
        found[skill] = {}
        for one in planned:
            if isinstance(one, Refuted):
                found[skill][one.statement] = one
            else:
                found[skill][one.statement.id] = one.result(Fate.BROKEN)
                attempts.append(one)
    if unknown:
        sentence = f"no chosen skill has the statement {shown(min(unknown))}; correct the id"
        raise InputError("--statement", sentence)
    request = replace(request, jobs=request.jobs or environment.processes)
    for attempt, result in _try_all(request, attempts, console):
        found[attempt.skill][result.statement] = result
    closure = SourceClosure(request.root)
    made = {"commit": environment.commit, "dirty": environment.dirty}
    return {
        skill: tuple(
            replace(row, sources=proof_sources(row, closure), **made)  # type: ignore[arg-type]
            for row in rows.values()
        )
        for skill, rows in found.items()
    }


def _plan(
    request: ProveRequest, skill: str, card: Card, refutations: Refutations, chosen: Sequence[str]
) -> Iterator[Refuted | _Attempt]:
    """Yield what is to be tried, or what is known without, in the order of the card."""
    executed = executed_statements(request.evidence, skill)
    choice = UpstreamChoice(request.upstreams, request.cache, offline=True)
    wheels = request.root / "cards" / WHEELS_FILE
    files = UpstreamFiles(card, choice, read_wheels(wheels) if wheels.is_file() else ())
    for one in statements(card):
        own = refutations.of(one.id)
        if (own is None and one.id not in executed) or (chosen and one.id not in chosen):
            continue
        if own is None:
            yield Refuted(one.id, Fate.NONE)
        elif isinstance(own, Excuse):
            yield Refuted(one.id, Fate.EXCUSED, refutation_digest(one, ()), why=own.why)
        else:
            proofs = (own.proof,) if own.proof else _executing(request, skill, one)
            attempt = _Attempt(skill, one, refutation_digest(one, own.edit), {}, proofs)
            try:
                attempt = replace(attempt, files=files.edited(own.edit))
            except UpstreamUnavailable as error:
                yield attempt.result(Fate.NOT_HERE, why=str(error))
            except (EditError, UpstreamError) as error:
                yield attempt.result(Fate.BROKEN, why=str(error))
            else:
                yield attempt


def _executing(request: ProveRequest, skill: str, statement: Statement) -> tuple[str, ...]:
    """Return the tests that execute upstream's code according to the record, the shortest first.

    Without a record of the statement, these are all of its tests.
    """
    known = recorded_proofs(request.evidence, skill)
    tests = [
        proof
        for proof in statement.proofs
        if proof.kind is ProofKind.PYTEST and (request.root / proof.file).is_file()
    ]

    def seconds(proof: Proof) -> float:
        return known[proof.id].seconds if proof.id in known else 0.0

    ran = [
        proof
        for proof in tests
        if proof.id not in known or known[proof.id].evidence == Evidence.UPSTREAM.value
    ]
    return tuple(proof.target for proof in sorted(ran or tests, key=seconds))


def _try_all(
    request: ProveRequest, attempts: Sequence[_Attempt], console: Console
) -> Iterator[tuple[_Attempt, Refuted]]:
    """Try refutations side by side, and yield each with its result."""
    make_folder(request.out, field="--out")
    failed = 0
    with (
        claimed(request.out, field="--out"),
        tempfile.TemporaryDirectory(prefix="ringproof-", ignore_cleanup_errors=True) as scratch,
        progress(console, "refutations", len(attempts)) as update,
        ExitStack() as at_the_end,
    ):
        runs = [_try(request, one, Path(scratch, str(at))) for at, one in enumerate(attempts)]
        for run in runs:
            at_the_end.callback(run.close)
        for done, (at, result) in enumerate(_side_by_side(runs, request.jobs), start=1):
            failed += result.outcome in (Fate.GREEN, Fate.BROKEN)
            update(done, len(attempts), failed, f"{result.statement}: {result.outcome.value}")
            yield attempts[at], result


def _side_by_side(runs: Sequence[_Run], most: int) -> Iterator[tuple[int, Refuted]]:
    """Go on with so many runs at a time, and yield the place and the result of each that ends.

    All processes start in this thread: what runs in a child before its program is started is not
    safe where other threads are.
    """
    waiting, running = deque(range(len(runs))), list[int]()
    while waiting or running:
        running += [waiting.popleft() for _ in range(min(len(waiting), most - len(running)))]
        ended = [(at, result) for at in running if (result := next(runs[at], None)) is not None]
        running = [at for at in running if at not in dict(ended)]
        yield from ended
        time.sleep(_PAUSE_SECONDS)


def _try(request: ProveRequest, attempt: _Attempt, folder: Path) -> _Run:
    """Run the tests of one statement with its edits in place.

    Yields:
        ``None`` while they run, and at last the result. What runs ends when this is closed.
    """
    if not attempt.proofs:
        yield attempt.result(Fate.BROKEN, why="the statement names no test of this checkout")
        return
    started = time.monotonic()
    cache = _own_cache(request.cache, folder)
    overlays = [write_overlay(folder, key, files) for key, files in attempt.files.items()]
    planted, events = folder / "edits.json", folder / "events.jsonl"
    planted.write_text(json.dumps({"ids": attempt.proofs, "edits": attempt.files}), "utf-8")
    events.touch()
    command = [
        *python(module="pytest"),
        *("-p", "ringproof.prove.recorder", "-p", "ringproof.refuting.planting"),
        *("-p", "no:cacheprovider", f"--rootdir={request.root}"),
        *(f"--ringproof-events={events}", f"{EDITS_OPTION}={planted}"),
        *replace(request, cache=cache).upstream_options(),
        *("--continue-on-collection-errors", "-q", "--color=no", "--"),
        *dict.fromkeys(proof.split("::")[0] for proof in attempt.proofs),
    ]
    environment = variables()
    paths = [str(path) for path in overlays if path] + [environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment["XDG_CACHE_HOME"] = str(cache.parent)
    output = request.out.resolve() / f"refuted-{attempt.skill}-{attempt.statement.id}.log"
    with (
        output.open("wb") as stream,
        supervised(command, request.root, stream, environment=environment) as process,
    ):
        deadline = started + request.timeout
        while process.poll() is None and time.monotonic() < deadline:
            yield None
        code = process.poll()
    suite = SuiteResult()
    for line in events.read_text("utf-8").splitlines():
        suite.feed(line)
    suite.end(ending(code, request.timeout, output))
    shutil.rmtree(folder, ignore_errors=True)
    seconds = round(time.monotonic() - started, 1)
    yield replace(judge_run(attempt.statement.id, attempt.digest, suite), seconds=seconds)


def _own_cache(cache: Path, folder: Path) -> Path:
    """Return a cache with all of another, in which what is unpacked now stays apart."""
    own = folder / "cache" / "ringproof"
    (own / "trees").mkdir(parents=True)
    for place, here in ((cache, own), (cache / "trees", own / "trees")):
        for path in place.iterdir() if place.is_dir() else ():
            if path.name != "trees" and not path.name.startswith("."):
                (here / path.name).symlink_to(path.resolve())
    return own


def judge_run(statement: str, digest: str, suite: SuiteResult) -> Refuted:
    """Return the outcome of a run: a failure in the call of a test is what is expected.

    Args:
        digest: `refutation_digest` of what was tried.
    """
    result = partial(Refuted, statement, digest=digest)
    tests = [*suite.tests.values()]
    reasons = []
    for test in tests:
        if test.outcome is not ProofState.FAILED:
            continue
        line = _first_line(test.detail)
        if test.detail.startswith(_OUTSIDE) or _DIED in test.detail:
            reasons.append(f"{test.id}: {line}")
        elif _NOT_LOADED.search(line):
            reasons.append(f"{test.id}: upstream could not be loaded: {line}")
        else:
            return result(Fate.SEEN, proof=test.id, failure=line)
    reasons += [f"{name}: {text.splitlines()[-1]}" for name, (_, text) in suite.problems.items()]
    if reasons or suite.incomplete:
        return result(Fate.BROKEN, why=(reasons or [suite.incomplete])[0][:_LONGEST])
    passed = sum(test.passed for test in tests)
    if passed:
        return result(Fate.GREEN, why=f"{passed} tests passed")
    why = tests[0].detail if tests else "no test has the name of a proof"
    return result(Fate.NOT_HERE if tests else Fate.BROKEN, why=why[:_LONGEST])


def _first_line(detail: str) -> str:
    """Return the first line of an error of pytest, without the folders of this machine."""
    match = _ERROR.search(detail)
    lines = detail.splitlines() or [""]
    line = match[1] if match else next((one for one in lines if one.strip()), "")
    return re.sub(r"/[^\s'\"]*/(ringproof-|site-packages/|trees/)[^\s'\"]*", "...", line)[:_LONGEST]
