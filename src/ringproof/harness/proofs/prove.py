"""Runs the proofs of all statements of cards, and judges each statement."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from ringproof.errors import InputError
from ringproof.harness.cards import (
    Card,
    Proof,
    ProofKind,
    Statement,
    find_cards,
    load_card,
    statements,
)
from ringproof.harness.proofs.anchoring import UPSTREAM_OPTION, AnchorProver, anchor_digests
from ringproof.harness.proofs.closure import SourceClosure
from ringproof.harness.proofs.environment import read_environment
from ringproof.harness.proofs.evidence import (
    RunFacts,
    SkillResult,
    recorded_seconds,
    stale_records,
)
from ringproof.harness.proofs.executed import Evidence
from ringproof.harness.proofs.grounds import Grounds
from ringproof.harness.proofs.progress import progress
from ringproof.harness.proofs.suite import ProveRequest, SuiteResult, judge_tests, run_suite
from ringproof.harness.proofs.verdicts import ProofResult, ProofState, Verdict, judge
from ringproof.harness.upstreams.sources import UpstreamChoice

NO_TESTS = "needs a checkout of ringproof"
"""Why tests are not here where only the skills are."""
_REFERENCE = ("src/ringproof/reference/", "src/ringproof/harness/tape/")
# How anchors, `given_tree`, the fixture `stage` and wheels say that upstream code is not here.
_LACKS = re.compile(rf"needs a checkout of|needs {UPSTREAM_OPTION}|is not in the cache")


@dataclass(frozen=True)
class ProveResult:
    """Result of ``ringproof prove``."""

    facts: RunFacts
    skills: tuple[SkillResult, ...]
    problems: tuple[str, ...]
    stale: tuple[str, ...]


@dataclass(frozen=True)
class _Subject:
    """A skill before the run, with the digests of its proofs' sources by proof id.

    ``own`` holds the kind of each test that touches no upstream code, by proof id.
    """

    name: str
    card: Card
    statements: tuple[Statement, ...]
    tests: tuple[Proof, ...]
    digests: Mapping[str, str | None]
    own: Mapping[str, Evidence]


def prove(request: ProveRequest, console: Console, notice: Callable[[str], None]) -> ProveResult:
    """Run every proof of the chosen skills once and judge their statements.

    Args:
        notice: Function that receives a line for each stale record before the proofs start.

    Raises:
        InputError: A skill is unknown, a card is invalid, a release does not exist, or the file of
            a proof is outside the repository.
    """
    started, clock = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    subjects = _subjects(request)
    wanted = dict.fromkeys(proof for subject in subjects for proof in subject.tests)
    runnable = _longest_first(
        [proof for proof in wanted if _exists(request.root, proof)],
        [recorded_seconds(request.evidence, subject.name) for subject in subjects],
    )
    environment = read_environment(request.root)
    stale = tuple(
        line
        for subject in subjects
        for line in stale_records(
            request.evidence, subject.name, subject.statements, subject.digests
        )
    )
    for line in stale:
        notice(line)
    anchors = _prove_anchors(request, subjects, console)
    # Two test processes, or one if tests share GPUs or there is one processor.
    jobs = request.jobs or (1 if environment.gpus else min(2, environment.cpus))
    suite = run_suite(request, runnable, jobs, console)
    alone = not any((request.root / Path(proof.file).parts[0]).exists() for proof in wanted)
    results = tuple(
        _judge(subject, anchors[subject.name], suite, alone=alone) for subject in subjects
    )
    facts = RunFacts(environment, started, time.monotonic() - clock, request.quick)
    problems = list(_problems(results, suite))
    if request.require_all:
        problems += (*request.short, *_lacking(results))
    return ProveResult(facts, results, tuple(problems), stale)


def _subjects(request: ProveRequest) -> tuple[_Subject, ...]:
    closure = SourceClosure(request.root)
    found = []
    for name, path in find_cards(request.skills, request.names).items():
        card = load_card(path)
        said = statements(card)
        tests = tuple(
            proof
            for statement in said
            for proof in statement.proofs
            if proof.kind is ProofKind.PYTEST
        )
        digests = {proof.id: closure.digest(proof.file) for proof in tests}
        both = MappingProxyType({**digests, **anchor_digests(card)})
        own = {proof.id: _own_kind(closure, proof) for proof in tests}
        found.append(_Subject(name, card, said, tests, both, own))
    return tuple(found)


def _own_kind(closure: SourceClosure, proof: Proof) -> Evidence:
    """The kind of a test that touches no upstream code, by what its file imports."""
    ran = any(name.startswith(_REFERENCE) for name in closure.files(proof.file))
    return Evidence.REFERENCE if ran else Evidence.DERIVED


def _exists(root: Path, proof: Proof) -> bool:
    """Return whether the file of a node id exists.

    Raises:
        InputError: The file is a link to a place outside the repository.
    """
    path = root / proof.file
    if path.is_file() and not path.resolve().is_relative_to(root.resolve()):
        problem = "lies outside the repository"
        raise InputError("proof", proof.id, problem, "name a test of this checkout")
    return path.is_file()


def _prove_anchors(
    request: ProveRequest, subjects: Sequence[_Subject], console: Console
) -> Mapping[str, Mapping[str, ProofResult]]:
    """Look up all anchors, and return the results by skill and proof id."""
    choice = UpstreamChoice(request.upstreams, request.cache, request.offline)
    choice.refuse_unknown(subject.card for subject in subjects)
    prover = AnchorProver(choice)
    total = sum(len(subject.card.anchors) for subject in subjects)
    done = failed = 0
    found: dict[str, Mapping[str, ProofResult]] = {}
    with progress(console, "anchors", total) as update:
        for subject in subjects:
            results = {}
            for anchor in subject.card.anchors:
                update(done, total, failed, f"{anchor.upstream}: {anchor.path}")
                result = prover.prove(subject.card, anchor)
                results[result.id] = result
                done += 1
                failed += result.state is ProofState.FAILED
            found[subject.name] = MappingProxyType(results)
        update(done, total, failed, "")
    return MappingProxyType(found)


def _longest_first(
    proofs: Sequence[Proof], recorded: Sequence[Mapping[str, float]]
) -> tuple[Proof, ...]:
    """Sort proofs by the time that their file took before, so that no process ends up alone."""
    seconds = dict.fromkeys((proof.file for proof in proofs), 0.0)
    for proof in proofs:
        seconds[proof.file] += max((times.get(proof.id, 0.0) for times in recorded), default=0.0)
    return tuple(sorted(proofs, key=lambda proof: (-seconds[proof.file], proof.file)))


def _without_file(proof: Proof, *, alone: bool) -> ProofResult:
    """Judge a test whose file does not exist.

    A checkout that has a folder of the named tests lacks this one, so the card is wrong. Skills
    that were installed or copied alone have none of these folders.
    """
    if alone:
        return ProofResult(proof.id, proof.kind, ProofState.UNAVAILABLE, detail=NO_TESTS)
    return ProofResult(proof.id, proof.kind, ProofState.MISSING, detail=f"no file {proof.file}")


def _judge(
    subject: _Subject, anchors: Mapping[str, ProofResult], suite: SuiteResult, *, alone: bool
) -> SkillResult:
    def outcome(proof: Proof) -> ProofResult:
        if proof.kind is ProofKind.ANCHOR:
            return anchors[proof.id]
        if proof.kind is ProofKind.UNPROVEN:
            return ProofResult(proof.id, proof.kind, ProofState.DECLARED, detail=proof.target)
        digest = subject.digests[proof.id]
        if digest is None:
            return _without_file(proof, alone=alone)
        return judge_tests(proof, suite, digest, own=subject.own[proof.id])

    grounds = Grounds(subject.card)
    judged = []
    for statement in subject.statements:
        proofs = tuple(outcome(proof) for proof in statement.proofs)
        judged.append(judge(statement, proofs, grounds.of(statement, proofs)))
    return SkillResult(subject.name, subject.card, tuple(judged))


def _lacking(results: Sequence[SkillResult]) -> Iterator[str]:
    """Yield a line for each skill whose proofs did not run in full for want of code."""
    for result in results:
        details = {name: proof.detail for name, proof in result.proofs.items()}
        found = [f"{name}: {detail}" for name, detail in details.items() if _LACKS.search(detail)]
        if found:
            yield f"{result.skill}: {len(found)} proofs lack code: {found[0][:300]}"


def _problems(results: Sequence[SkillResult], suite: SuiteResult) -> Iterator[str]:
    for result in results:
        refuted = result.count(Verdict.REFUTED)
        if refuted:
            yield f"{result.skill}: {refuted} of {len(result.statements)} statements refuted"
        if not result.executed:
            yield f"{result.skill}: no proof was executed"
    if suite.incomplete:
        yield f"not every test was run: {suite.incomplete}"
