"""Derives verdicts from results by pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from ringproof.harness.anchors.resolve import Resolution
from ringproof.harness.cards.proof import Proof, ProofKind
from ringproof.harness.cards.statements import Statement
from ringproof.harness.proofs.outcomes import SuiteResult, TestOutcome, TestState

LEFT_OUT = "left out of the quick run"


class Verdict(str, Enum):
    """Verdict on a statement.

    Proven: all of its proofs ran and passed. Partly: some passed, and the others could not run
    here. Refuted: a proof failed or does not exist. Unproven: the card says so. Not here: no proof
    could run.
    """

    PROVEN = "proven"
    PARTLY = "partly"
    REFUTED = "refuted"
    UNPROVEN = "unproven"
    NOT_HERE = "not-here"


class ProofState(str, Enum):
    """Result of one proof of a statement."""

    PASSED = "passed"
    FAILED = "failed"
    MISSING = "missing"
    SKIPPED = "skipped"
    LEFT_OUT = "left out"
    NOT_RUN = "not run"
    UNAVAILABLE = "unavailable"
    DECLARED = "declared unproven"


_REFUTING = frozenset((ProofState.FAILED, ProofState.MISSING))
_EXECUTED = frozenset((ProofState.PASSED, ProofState.FAILED))


@dataclass(frozen=True)
class Spread:
    """Range of a number that several tests of one proof recorded."""

    minimum: float
    maximum: float
    count: int


@dataclass(frozen=True)
class ProofResult:
    """Result of one proof of a statement, with details.

    Attributes:
        tests: Number of tests in each state; empty for anchors and declarations.
        numbers: Numbers that its tests recorded, by name.
        notes: Texts that its tests recorded, by name, each once; for an anchor its place.
        detail: Why it did not pass, or what was skipped although it passed.
        sources: Digest of its sources; ``None`` if there are none.
    """

    id: str
    kind: ProofKind
    state: ProofState
    seconds: float = 0.0
    tests: Mapping[TestState, int] = field(default_factory=dict)
    numbers: Mapping[str, Spread] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    detail: str = ""
    sources: str | None = None

    @property
    def executed(self) -> bool:
        """Whether it passed or failed here."""
        return self.state in _EXECUTED

    @property
    def complete(self) -> bool:
        """Whether all of its tests ran and passed."""
        return self.state is ProofState.PASSED and set(self.tests) <= {TestState.PASSED}


@dataclass(frozen=True)
class StatementResult:
    """A statement and its verdict."""

    statement: Statement
    verdict: Verdict
    reason: str
    proofs: tuple[ProofResult, ...]

    @property
    def seconds(self) -> float:
        """Time of its proofs. A test that several statements share counts for each."""
        return sum(proof.seconds for proof in self.proofs)


def judge(statement: Statement, proofs: tuple[ProofResult, ...]) -> StatementResult:
    """Judge a statement.

    It is refuted if any proof failed or does not exist, and proven only if all of them ran and
    passed. An anchor shows that upstream's code exists, but not what it does. So if a statement
    also has tests and none of them ran, the anchor alone does not prove a part of it.
    """
    bad = [proof for proof in proofs if proof.state in _REFUTING]
    if bad:
        reason = "; ".join(_telling_line(proof) for proof in bad)
        return StatementResult(statement, Verdict.REFUTED, reason, proofs)
    if any(proof.state is ProofState.DECLARED for proof in proofs):
        reason = "; ".join(proof.detail for proof in proofs)
        return StatementResult(statement, Verdict.UNPROVEN, reason, proofs)
    tests = [proof for proof in proofs if proof.kind is ProofKind.PYTEST]
    passed = [proof for proof in tests or proofs if proof.state is ProofState.PASSED]
    cut = any(proof.state is ProofState.NOT_RUN for proof in proofs)
    open_points = "; ".join(dict.fromkeys(proof.detail for proof in proofs if proof.detail))
    if not passed or cut:
        return StatementResult(statement, Verdict.NOT_HERE, open_points, proofs)
    verdict = Verdict.PROVEN if all(proof.complete for proof in proofs) else Verdict.PARTLY
    return StatementResult(statement, verdict, open_points, proofs)


def _telling_line(proof: ProofResult) -> str:
    """Return the proof and its most informative line. pytest marks the exception with ``E``."""
    lines = [line.strip() for line in proof.detail.splitlines() if line.strip()]
    raised = [line[2:].strip() for line in lines if line.startswith("E ")]
    telling = [*raised[:1], *reversed(lines), proof.state.value][0]
    return f"{proof.id}: {telling}"


def judge_tests(proof: Proof, suite: SuiteResult, sources: str | None) -> ProofResult:
    """Judge a pytest node id by all the tests that it names."""
    tests = suite.covered_by(proof.target)
    if not tests:
        state, detail = _nothing_collected(proof, suite)
        return ProofResult(proof.id, proof.kind, state, detail=detail, sources=sources)
    counts = {state: sum(test.state is state for test in tests) for state in TestState}
    return ProofResult(
        proof.id,
        proof.kind,
        _test_state(counts),
        seconds=round(sum(test.seconds for test in tests), 3),
        tests=MappingProxyType({state: count for state, count in counts.items() if count}),
        numbers=_numbers(tests),
        notes=_notes(tests),
        detail=_test_detail(tests, counts),
        sources=sources,
    )


def _nothing_collected(proof: Proof, suite: SuiteResult) -> tuple[ProofState, str]:
    for problem in suite.problems:
        # A problem of the file, of a class that contains the test, or of a folder.
        if problem.id == proof.file or proof.target.startswith(
            (f"{problem.id}::", f"{problem.id}/")
        ):
            state = ProofState.FAILED if problem.failed else ProofState.SKIPPED
            return state, problem.detail
    if suite.incomplete:
        return ProofState.NOT_RUN, f"not run: {suite.incomplete}"
    return ProofState.MISSING, "names no test of this checkout"


def _test_state(counts: Mapping[TestState, int]) -> ProofState:
    order = (
        (TestState.FAILED, ProofState.FAILED),
        (TestState.NOT_RUN, ProofState.NOT_RUN),
        (TestState.PASSED, ProofState.PASSED),
        (TestState.SKIPPED, ProofState.SKIPPED),
    )
    for state, outcome in order:
        if counts[state]:
            return outcome
    return ProofState.LEFT_OUT


def _test_detail(tests: Sequence[TestOutcome], counts: Mapping[TestState, int]) -> str:
    failures = [test for test in tests if test.state is TestState.FAILED]
    if failures:
        more = f"\n({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        return f"{failures[0].id}\n{failures[0].detail}{more}"
    parts = []
    alone = counts[TestState.PASSED] == 0
    if counts[TestState.NOT_RUN]:
        cut = next(test for test in tests if test.state is TestState.NOT_RUN)
        parts.append(f"{counts[TestState.NOT_RUN]} not run: {cut.detail}")
    if counts[TestState.SKIPPED]:
        reasons = dict.fromkeys(test.detail for test in tests if test.state is TestState.SKIPPED)
        prefix = "" if alone else f"{counts[TestState.SKIPPED]} skipped: "
        parts.append(prefix + ", ".join(reasons))
    if counts[TestState.LEFT_OUT]:
        prefix = "" if alone else f"{counts[TestState.LEFT_OUT]} "
        parts.append(prefix + LEFT_OUT)
    return "; ".join(parts)


def _recorded(tests: Iterable[TestOutcome]) -> Iterable[tuple[str, float | int | str]]:
    ran = (test for test in tests if test.state in (TestState.PASSED, TestState.FAILED))
    return (pair for test in ran for pair in test.properties)


def _numbers(tests: Sequence[TestOutcome]) -> Mapping[str, Spread]:
    spreads: dict[str, Spread] = {}
    for name, value in _recorded(tests):
        if isinstance(value, str):
            continue
        old = spreads.get(name, Spread(value, value, 0))
        low, high = min(old.minimum, value), max(old.maximum, value)
        spreads[name] = Spread(low, high, old.count + 1)
    return MappingProxyType(spreads)


def _notes(tests: Sequence[TestOutcome]) -> Mapping[str, tuple[str, ...]]:
    notes: dict[str, tuple[str, ...]] = {}
    for name, value in _recorded(tests):
        if isinstance(value, str) and value not in notes.get(name, ()):
            notes[name] = (*notes.get(name, ()), value)
    return MappingProxyType(notes)


def judge_anchor(proof: Proof, resolution: Resolution, sources: str) -> ProofResult:
    """Judge an anchor that was looked up."""
    state = ProofState.PASSED if resolution.holds else ProofState.FAILED
    detail = "" if resolution.holds else f"{resolution.status.value}: {resolution.detail}"
    notes = {"origin": (resolution.origin,)}
    if resolution.fingerprint is not None:
        notes["place"] = (f"{resolution.path}:{resolution.start}-{resolution.end}",)
        notes["fingerprint"] = (resolution.fingerprint,)
    place = MappingProxyType(notes)
    return ProofResult(proof.id, proof.kind, state, notes=place, detail=detail, sources=sources)
