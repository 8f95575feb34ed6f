"""Runs the proofs of all statements of cards, and judges each statement."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ringproof.cards import (
    Card,
    Proof,
    ProofKind,
    Statement,
    find_cards,
    load_card,
    statements,
)
from ringproof.errors import InputError, shown
from ringproof.files import claimed, make_folder
from ringproof.progress import progress
from ringproof.prove.anchoring import UPSTREAM_OPTION, AnchorProver, anchor_digest
from ringproof.prove.closure import SourceClosure
from ringproof.prove.environment import read_environment
from ringproof.prove.evidence import (
    RunFacts,
    SkillResult,
    recorded_seconds,
    skill_record,
    stale_records,
)
from ringproof.prove.grounds import Grounds
from ringproof.prove.judging import judge
from ringproof.prove.results import Judged, ProofState, Verdict
from ringproof.prove.resuming import keep_facts, run_facts, taken_over, test_ids
from ringproof.prove.suite import ProveRequest, SuiteResult, run_suite
from ringproof.prove.touches import Evidence
from ringproof.upstream.sources import UpstreamChoice

NO_TESTS = "needs a checkout of ringproof"
"""Why tests are not here where only the skills are."""
_REFERENCE = ("src/ringproof/reference/", "src/ringproof/reference/graphs/tape/")
# How anchors, `given_tree`, the fixture `stage` and wheels say that upstream code is not here.
_LACKS = re.compile(rf"needs a checkout of|needs {UPSTREAM_OPTION}|is not in the cache")


@dataclass(frozen=True)
class ProveResult:
    """Result of ``ringproof prove``: the record of each skill, and what is wrong."""

    records: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]
    stale: tuple[str, ...]


def prove(
    request: ProveRequest, console: Console, notice: Callable[[str], None], held: ExitStack
) -> ProveResult:
    """Run every proof of the chosen skills once and judge their statements.

    Args:
        notice: Function that receives a line for each stale record before the proofs start, and one
            about what is taken over from the run before.
        held: Keeps the folder of this run from other runs, until all of it is written.

    Raises:
        InputError: A skill is unknown, a card is invalid, a release does not exist, the file of a
            proof is outside the repository, or another run writes into the same folder.
    """
    started, clock = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    paths = find_cards(request.skills, request.names)
    cards = {name: load_card(path) for name, path in paths.items()}
    said = {name: statements(card) for name, card in cards.items()}
    proofs = dict.fromkeys(p for own in said.values() for one in own for p in one.proofs)
    tests = [proof for proof in proofs if proof.kind is ProofKind.PYTEST]
    closure = SourceClosure(request.root)
    digests = {proof.id: closure.digest(proof.file) for proof in tests}
    runnable = _longest_first(
        [proof for proof in tests if _exists(request.root, proof)],
        [recorded_seconds(request.evidence, name) for name in cards],
    )
    make_folder(request.out, field="--out")
    held.enter_context(claimed(request.out, field="--out"))
    environment = read_environment(request.root)
    stale: list[str] = []
    for name, card in cards.items():
        own = {f"anchor:{anchor.id}": anchor_digest(card, anchor) for anchor in card.anchors}
        stale += stale_records(request.evidence, name, said[name], digests | own)
    for line in stale:
        notice(f"stale: {line}")
    anchors = _prove_anchors(request, cards, console)
    jobs = request.jobs or environment.processes
    sources = {proof.file: digests[proof.id] for proof in tests}
    known = run_facts(environment, request.upstreams, request.root)
    before = taken_over(request.out, known, sources) if request.resume else ()
    if request.resume:
        notice(f"taken over from the run before: {len(test_ids(before))} tests")
    keep_facts(request.out, known, sources)
    suite = run_suite(request, runnable, jobs, console, before)
    alone = not any((request.root / Path(proof.file).parts[0]).exists() for proof in tests)
    outcomes = {p.id: _outcome(p, suite, closure, alone=alone) for p in proofs}
    results = tuple(
        _judged(name, card, said[name], outcomes | anchors[name]) for name, card in cards.items()
    )
    facts = RunFacts(environment, started, time.monotonic() - clock, request.quick)
    problems = list(_problems(results, suite))
    if request.require_all:
        problems += (*request.short, *_lacking(results))
    records = tuple(skill_record(result, facts) for result in results)
    return ProveResult(records, tuple(problems), tuple(stale))


def _exists(root: Path, proof: Proof) -> bool:
    """Return whether the file of a node id exists.

    Raises:
        InputError: The file is a link to a place outside the repository.
    """
    path = root / proof.file
    if path.is_file() and not path.resolve().is_relative_to(root.resolve()):
        problem = f"{shown(proof.id)} lies outside the repository"
        raise InputError("proof", f"{problem}; name a test of this checkout")
    return path.is_file()


def _prove_anchors(
    request: ProveRequest, cards: Mapping[str, Card], console: Console
) -> Mapping[str, dict[str, Judged]]:
    """Look up all anchors, and return the results by skill and proof id."""
    choice = UpstreamChoice(request.upstreams, request.cache, request.offline)
    choice.refuse_unknown(cards.values())
    prover = AnchorProver(choice)
    anchors = [(skill, anchor) for skill, card in cards.items() for anchor in card.anchors]
    failed = 0
    found: dict[str, dict[str, Judged]] = {skill: {} for skill in cards}
    with progress(console, "anchors", len(anchors)) as update:
        for done, (skill, anchor) in enumerate(anchors):
            update(done, len(anchors), failed, f"{anchor.upstream}: {anchor.path}")
            result = prover.prove(cards[skill], anchor)
            found[skill][result.id] = result
            failed += result.outcome is ProofState.FAILED
        update(len(anchors), len(anchors), failed, "")
    return found


def _longest_first(
    proofs: Sequence[Proof], recorded: Sequence[Mapping[str, float]]
) -> tuple[Proof, ...]:
    """Sort proofs by the time that their file took before, so that no process ends up alone."""
    seconds = dict.fromkeys((proof.file for proof in proofs), 0.0)
    for proof in proofs:
        seconds[proof.file] += max((times.get(proof.id, 0.0) for times in recorded), default=0.0)
    return tuple(sorted(proofs, key=lambda proof: (-seconds[proof.file], proof.file)))


def _outcome(proof: Proof, suite: SuiteResult, closure: SourceClosure, *, alone: bool) -> Judged:
    """Return the result of a proof that is not an anchor.

    A checkout that has a folder of the named tests and lacks the file of one has a wrong card.
    Skills that were installed or copied ``alone`` have none of these folders.
    """
    if proof.kind is not ProofKind.PYTEST:
        return Judged(proof.id, ProofState.DECLARED, proof.target)
    sources = closure.files(proof.file)
    if not sources and alone:
        return Judged(proof.id, ProofState.UNAVAILABLE, NO_TESTS)
    if not sources:
        return Judged(proof.id, ProofState.MISSING, f"no file {proof.file}")
    # The kind of a test that touches no upstream code follows from what its file imports.
    ran = any(name.startswith(_REFERENCE) for name in sources)
    own = Evidence.REFERENCE if ran else Evidence.DERIVED
    return suite.result(proof, own=own, sources=closure.digest(proof.file))


def _judged(
    skill: str, card: Card, said: Sequence[Statement], outcomes: Mapping[str, Judged]
) -> SkillResult:
    grounds = Grounds(card)
    judged = []
    for statement in said:
        proofs = tuple(outcomes[proof.id] for proof in statement.proofs)
        judged.append(judge(statement, proofs, grounds.of(statement, proofs)))
    return SkillResult(skill, card, tuple(said), tuple(judged))


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
            yield f"{result.skill}: {refuted} of {len(result.said)} statements refuted"
        if not result.executed:
            yield f"{result.skill}: no proof was executed"
    if suite.incomplete:
        yield f"not every test was run: {suite.incomplete}"
