"""Derives verdicts from results by pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ringproof.cards.proof import ProofKind
from ringproof.cards.statements import Statement
from ringproof.prove.executed import Evidence, Touch


class Verdict(str, Enum):
    """Verdict on a statement: its word, its sign and style on a terminal, and what it means."""

    sign: str
    style: str
    meaning: str

    PROVEN = "proven", "\u2713", "green", "all of its proofs ran and passed"
    IN_REFERENCE = (
        "in-reference",
        "\u2248",
        "dark_cyan",
        "about upstream, but only ringproof's own code ran",
    )
    PARTLY = "partly", "\u25d0", "dark_orange", "some proofs passed, and others could not run here"
    REFUTED = "refuted", "\u2717", "bold red", "a proof failed or does not exist"
    UNPROVEN = "unproven", "?", "yellow", "the card says that nothing proves it"
    NOT_HERE = "not-here", "\u2013", "cyan", "no proof could run here"

    def __new__(cls, word: str, sign: str, style: str, meaning: str) -> Verdict:
        """Make a member whose value is its word."""
        member = str.__new__(cls, word)
        member._value_, member.sign, member.style, member.meaning = word, sign, style, meaning
        return member


LEFT_OUT = "left out of the quick run"
"""Why a test that is marked slow was skipped."""


class ProofState(str, Enum):
    """Result of one proof of a statement, or of one of its tests."""

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

    min: float
    max: float
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
        touches: Upstream code that its passed tests touched.
        evidence: Its kind; ``None`` for a declaration.
    """

    id: str
    kind: ProofKind
    state: ProofState
    seconds: float = 0.0
    tests: Mapping[ProofState, int] = field(default_factory=dict)
    numbers: Mapping[str, Spread] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    detail: str = ""
    sources: str | None = None
    touches: tuple[Touch, ...] = ()
    evidence: Evidence | None = None

    @property
    def executed(self) -> bool:
        """Whether it passed or failed here."""
        return self.state in _EXECUTED

    @property
    def complete(self) -> bool:
        """Whether all of its tests ran and passed."""
        return self.state is ProofState.PASSED and set(self.tests) <= {ProofState.PASSED}


@dataclass(frozen=True)
class Ground:
    """What a statement rests on.

    Attributes:
        evidence: The strongest kind of its passed proofs that covers its whole scope; ``None`` if
            no proof passed.
        executed: Lines of its scope on which upstream's code ran.
        read: Lines of its scope in which upstream's code was read.
        uncovered: Lines of its scope on which neither happened.
    """

    evidence: Evidence | None = None
    executed: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()


@dataclass(frozen=True)
class StatementResult:
    """A statement and its verdict."""

    statement: Statement
    verdict: Verdict
    reason: str
    proofs: tuple[ProofResult, ...]
    ground: Ground = Ground()

    @property
    def seconds(self) -> float:
        """Time of its proofs. A test that several statements share counts for each."""
        return sum(proof.seconds for proof in self.proofs)


def judge(
    statement: Statement, proofs: tuple[ProofResult, ...], ground: Ground = Ground()
) -> StatementResult:
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
    own = ground.evidence in (Evidence.REFERENCE, Evidence.DERIVED)
    if verdict is Verdict.PROVEN and statement.lines and own:
        verdict = Verdict.IN_REFERENCE
    elif verdict is Verdict.PROVEN and ground.uncovered:
        verdict = Verdict.PARTLY
        open_points = f"nothing ran or was read on {', '.join(ground.uncovered)}"
    return StatementResult(statement, verdict, open_points, proofs, ground)


def _telling_line(proof: ProofResult) -> str:
    """Return the proof and its most informative line. pytest marks the exception with ``E``."""
    lines = [line.strip() for line in proof.detail.splitlines() if line.strip()]
    raised = [line[2:].strip() for line in lines if line.startswith("E ")]
    telling = [*raised[:1], *reversed(lines), proof.state.value][0]
    return f"{proof.id}: {telling}"
