"""Results of tests, proofs and statements: one type, with verdicts and states as its outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ringproof.cards.proof import ProofKind, parse_proof
from ringproof.prove.touches import Evidence, Touch
from ringproof.styles import BAD, DOUBT, GOOD, NOTE


class ProofState(str, Enum):
    """Outcome of a test or a proof."""

    PASSED = "passed"
    FAILED = "failed"
    MISSING = "missing"
    SKIPPED = "skipped"
    LEFT_OUT = "left out"
    NOT_RUN = "not run"
    UNAVAILABLE = "unavailable"
    DECLARED = "declared unproven"


class Verdict(str, Enum):
    """Outcome of a statement: its word, its sign and style on a terminal, and what it means."""

    sign: str
    style: str
    meaning: str

    PROVEN = "proven", "\u2713", GOOD, "all of its proofs ran and passed"
    IN_REFERENCE = (
        "in-reference",
        "\u2248",
        NOTE,
        "about upstream, but only ringproof's own code ran",
    )
    PARTLY = "partly", "\u25d0", DOUBT, "some proofs passed, and others could not run here"
    REFUTED = "refuted", "\u2717", BAD, "a proof failed or does not exist"
    UNPROVEN = "unproven", "?", DOUBT, "the card says that nothing proves it"
    NOT_HERE = "not-here", "\u2013", NOTE, "no proof could run here"

    def __new__(cls, word: str, sign: str, style: str, meaning: str) -> Verdict:
        """Make a member whose value is its word."""
        member = str.__new__(cls, word)
        member._value_, member.sign, member.style, member.meaning = word, sign, style, meaning
        return member


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


NO_GROUND = Ground()


@dataclass(frozen=True)
class Judged:
    """What became of a test, of a proof, or of a statement.

    Attributes:
        id: Node id of the test, the proof as the card spells it, or the id of the statement.
        outcome: A state for a test or proof, a verdict for a statement.
        detail: Why it did not pass, or what could not run although it passed.
        seconds: Time that it took itself, without that of its parts; for a test its set-up, call
            and tear-down.
        parts: The tests of a proof, or the proofs of a statement.
        properties: Name and value of what a test recorded, or what is known of an anchor's place.
        touches: Upstream code that it touched.
        sources: Digest of the sources of a proof; ``None`` if there are none.
        ground: What a statement or proof rests on.
    """

    id: str
    outcome: ProofState | Verdict
    detail: str = ""
    seconds: float = 0.0
    parts: tuple[Judged, ...] = ()
    properties: tuple[tuple[str, float | int | str], ...] = ()
    touches: tuple[Touch, ...] = ()
    sources: str | None = None
    ground: Ground = NO_GROUND

    @property
    def kind(self) -> ProofKind:
        """Kind of a proof."""
        return parse_proof(self.id).kind

    @property
    def passed(self) -> bool:
        """Whether a test or proof passed."""
        return self.outcome is ProofState.PASSED

    @property
    def executed(self) -> bool:
        """Whether a test or proof passed or failed here."""
        return self.outcome in (ProofState.PASSED, ProofState.FAILED)

    @property
    def complete(self) -> bool:
        """Whether a proof passed, and so did all of its tests."""
        return self.passed and all(part.passed for part in self.parts)

    @property
    def counts(self) -> Mapping[ProofState | Verdict, int]:
        """Number of parts with each outcome that occurs."""
        found = Counter(part.outcome for part in self.parts)
        return {outcome: found[outcome] for outcome in (*ProofState, *Verdict) if found[outcome]}

    @property
    def total_seconds(self) -> float:
        """Its own time and that of its parts. A test of several statements counts for each."""
        return self.seconds + sum(part.total_seconds for part in self.parts)
