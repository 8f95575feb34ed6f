"""Evidence records: the committed JSON, and checks whether it is stale.

There is one file for each skill and environment class::

    {"version": 3, "ringproof": V, "skill": NAME, "title": TEXT, "summary": TEXT,
     "quick": false,
     "environment": {"class", "python", "torch", "platform", "cpus", "gpus", "commit", "dirty"},
     "started": "2026-01-31T12:00:00Z", "seconds": S,
     "claims": [{"id", "kind", "says", "lines": [LINE], "verdict", "reason", "seconds",
                 "evidence": KIND | null, "executed": [LINE], "read": [LINE],
                 "proofs": [{"id", "kind", "outcome", "seconds", "tests": {STATE: N},
                             "numbers": {NAME: {"min", "max", "count"}},
                             "notes": {NAME: [TEXT]}, "detail", "sources": SHA256,
                             "evidence": KIND | null, "upstream": [TEXT],
                             "ran": {TEXT: ["FILE:FUNCTION"]}}]}],
     "validation_status": {TOPIC: VERDICT},
     "about_upstream": {KIND: N, "none": N},
     "totals": {"proven": N, "in-reference": N, "partly": N, "refuted": N, "unproven": N,
                "not-here": N, "proofs": N, "proofs_executed": N}}
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, Field

from ringproof import __version__
from ringproof.cards.card import Card
from ringproof.cards.proof import ProofKind
from ringproof.cards.statements import Statement, StatementKind
from ringproof.errors import InputError
from ringproof.prove.environment import Environment
from ringproof.prove.results import Judged, Verdict
from ringproof.prove.touches import Evidence, Touch

VERSION = 3
_BEST_FIRST = ("proven", "partly", "refuted", "in-reference", "unproven", "not-here")
_WORST_FIRST = (
    Verdict.REFUTED,
    Verdict.UNPROVEN,
    Verdict.NOT_HERE,
    Verdict.PARTLY,
    Verdict.IN_REFERENCE,
    Verdict.PROVEN,
)


@dataclass(frozen=True)
class SkillResult:
    """The statements of a skill, and the result of each, in the same order."""

    skill: str
    card: Card
    said: tuple[Statement, ...]
    results: tuple[Judged, ...]

    def count(self, verdict: Verdict) -> int:
        """Count the statements with this verdict."""
        return sum(result.outcome is verdict for result in self.results)

    @property
    def about_upstream(self) -> dict[str, int]:
        """Count the statements about upstream by the kind of their evidence.

        These name lines of upstream, or rest on upstream's code. Those that are not proven count as
        ``none``, and anchors that no statement uses not at all.
        """
        found = dict.fromkeys((*(kind.value for kind in Evidence), "none"), 0)
        for statement, result in zip(self.said, self.results, strict=True):
            evidence = result.ground.evidence
            rests = evidence in (Evidence.UPSTREAM, Evidence.READ)
            if statement.kind is not StatementKind.ANCHOR and (statement.lines or rests):
                settled = result.outcome in (Verdict.PROVEN, Verdict.IN_REFERENCE)
                found[evidence.value if settled and evidence else "none"] += 1
        return found

    @property
    def proofs(self) -> dict[str, Judged]:
        """Return the distinct proofs by id, without ``unproven`` declarations."""
        proofs = (proof for result in self.results for proof in result.parts)
        return {proof.id: proof for proof in proofs if proof.kind is not ProofKind.UNPROVEN}

    @property
    def executed(self) -> int:
        """Number of distinct proofs that passed or failed."""
        return sum(proof.executed for proof in self.proofs.values())


@dataclass(frozen=True)
class RunFacts:
    """Facts about the whole run."""

    environment: Environment
    started: datetime.datetime
    seconds: float
    quick: bool


def skill_record(result: SkillResult, facts: RunFacts) -> dict[str, Any]:
    """Return the record of one skill in the form of the module docstring."""
    environment = asdict(facts.environment)
    started = facts.started.astimezone(datetime.timezone.utc)
    return {
        "version": VERSION,
        "ringproof": __version__,
        "skill": result.skill,
        "title": result.card.title,
        "summary": result.card.summary,
        "quick": facts.quick,
        "environment": {"class": environment.pop("name"), **environment},
        "started": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(facts.seconds, 3),
        "claims": list(map(_claim, result.said, result.results)),
        "validation_status": _status(result),
        "about_upstream": result.about_upstream,
        "totals": {
            **{verdict.value: result.count(verdict) for verdict in Verdict},
            "proofs": len(result.proofs),
            "proofs_executed": result.executed,
        },
    }


def _claim(statement: Statement, result: Judged) -> dict[str, Any]:
    ground = result.ground
    return {
        "id": statement.id,
        "kind": statement.kind.value,
        "says": statement.says,
        "lines": list(statement.lines),
        "verdict": result.outcome.value,
        "reason": result.detail,
        "seconds": round(result.total_seconds, 3),
        "evidence": ground.evidence and ground.evidence.value,
        "executed": list(ground.executed),
        "read": list(ground.read),
        "proofs": [_proof(proof) for proof in result.parts],
    }


def _proof(proof: Judged) -> dict[str, Any]:
    evidence = proof.ground.evidence
    return {
        "id": proof.id,
        "kind": proof.kind.value,
        "outcome": proof.outcome.value,
        "seconds": round(proof.total_seconds, 3),
        "tests": {state.value: count for state, count in proof.counts.items()},
        **_recorded(proof),
        "detail": proof.detail,
        "sources": proof.sources,
        "evidence": evidence and evidence.value,
        "upstream": list(dict.fromkeys(_words(touch) for touch in proof.touches)),
        "ran": {_words(touch): list(touch.functions) for touch in proof.touches if touch.executed},
    }


def _recorded(proof: Judged) -> dict[str, Any]:
    """Return the range of each number that the tests recorded, and each text once, by name."""
    values: dict[str, list[float | int | str]] = {}
    for result in (proof, *(test for test in proof.parts if test.executed)):
        for name, value in result.properties:
            values.setdefault(name, []).append(value)
    numbers = {name: [v for v in own if not isinstance(v, str)] for name, own in values.items()}
    texts = {name: [v for v in own if isinstance(v, str)] for name, own in values.items()}
    return {
        "numbers": {
            name: {"min": min(own), "max": max(own), "count": len(own)}
            for name, own in numbers.items()
            if own
        },
        "notes": {name: list(dict.fromkeys(own)) for name, own in texts.items() if own},
    }


def _words(touch: Touch) -> str:
    how = "executed" if touch.executed else "read"
    return f"{how} {touch.repo} {touch.name.partition('#')[0]}"


def _status(result: SkillResult) -> dict[str, str]:
    """Return the worst verdict of the deciding statements, for ``validation_status``.

    An anchor that a statement uses has no verdict of its own, so the result of its proof decides.
    """
    verdicts: dict[str, Any] = {item.id: item.outcome for item in result.results}
    for proof in result.proofs.values():
        if proof.kind is ProofKind.ANCHOR:
            failed = Verdict.REFUTED if proof.executed else Verdict.NOT_HERE
            verdict = Verdict.PROVEN if proof.passed else failed
            verdicts.setdefault(proof.id.removeprefix("anchor:"), verdict)
    topics = {}
    for topic, deciding in result.card.validation_status.items():
        found = [verdicts[name] for name in deciding if name in verdicts]
        worst = next((verdict for verdict in _WORST_FIRST if verdict in found), Verdict.UNPROVEN)
        topics[topic] = worst.value
    return topics


class RecordedProof(BaseModel):
    """A proof as it is recorded, of any version of the format."""

    id: str
    seconds: float = 0.0
    sources: str | None = None
    evidence: str | None = None


class _RecordedClaim(BaseModel):
    id: str = ""
    kind: str = ""
    says: str = ""
    verdict: str = ""
    evidence: str | None = None
    proofs: tuple[RecordedProof, ...] = ()


class _Record(BaseModel):
    """The parts of a record that are read again, of any version of the format."""

    version: int = 0
    claims: tuple[_RecordedClaim, ...]
    about_upstream: dict[str, int] = Field(default_factory=dict)


def _records(folder: Path, skill: str) -> Iterator[tuple[Path, _Record | None]]:
    """Yield the records ``CLASS/SKILL.json`` in a folder; ``None`` for a file that is none."""
    for path in sorted(folder.glob(f"*/{skill}.json")):
        try:
            yield path, _Record.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            yield path, None


def _readable_records(folder: Path, skill: str) -> Iterator[_Record]:
    """Yield the records of a skill.

    Raises:
        InputError: A record cannot be read.
    """
    for path, record in _records(folder, skill):
        if record is None:
            remedy = "record it again with `ringproof prove --record`"
            raise InputError(str(path), f"this is not an evidence record; {remedy}")
        yield record


def recorded_verdicts(folder: Path, skill: str) -> Mapping[str, str]:
    """Return the best verdict of each statement of a skill over all environments.

    Raises:
        InputError: A record cannot be read.
    """
    rank = {verdict: place for place, verdict in enumerate(_BEST_FIRST)}
    best: dict[str, str] = {}
    for record in _readable_records(folder, skill):
        for claim in record.claims:
            both = (claim.verdict, best.get(claim.id, claim.verdict))
            best[claim.id] = min(both, key=lambda verdict: rank.get(verdict, len(rank)))
    return MappingProxyType(best)


def about_upstream(folder: Path, skill: str) -> Mapping[str, int] | None:
    """Return the counts of a skill's statements about upstream by kind of evidence.

    They are those of the environment in which most were executed in upstream's code; ``None``
    without a record that has them.

    Raises:
        InputError: A record cannot be read.
    """
    counts = (record.about_upstream for record in _readable_records(folder, skill))
    executed = Evidence.UPSTREAM.value
    return max((one for one in counts if one), key=lambda one: one[executed], default=None)


def recorded_seconds(folder: Path, skill: str) -> dict[str, float]:
    """Return how long each proof of a skill took according to its records, by proof id.

    A record that is not readable is left out.
    """
    return {name: proof.seconds for name, proof in recorded_proofs(folder, skill).items()}


def recorded_proofs(folder: Path, skill: str) -> dict[str, RecordedProof]:
    """Return the proofs of a skill in its records by id, without records that are not readable."""
    claims = (claim for _, record in _records(folder, skill) if record for claim in record.claims)
    return {proof.id: proof for claim in claims for proof in claim.proofs}


def executed_statements(folder: Path, skill: str) -> frozenset[str]:
    """Return the statements that were executed in upstream's code according to a record."""
    claims = (claim for _, record in _records(folder, skill) if record for claim in record.claims)
    return frozenset(
        claim.id
        for claim in claims
        if claim.evidence == Evidence.UPSTREAM.value and claim.kind != StatementKind.ANCHOR.value
    )


def stale_records(
    folder: Path,
    skill: str,
    current: Sequence[Statement],
    digests: Mapping[str, str | None],
) -> Iterator[str]:
    """Yield a line for each committed record of a skill that is stale.

    Args:
        digests: Current digests of the sources of proofs, by proof id.
    """
    for path, record in _records(folder, skill):
        reasons = ["not readable as an evidence record"]
        if record is not None:
            reasons = list(_differences(record, current, digests))
        if reasons:
            yield f"{folder.name}/{path.parent.name}/{path.name}: {'; '.join(reasons)}"


def _differences(
    record: _Record, current: Sequence[Statement], digests: Mapping[str, str | None]
) -> Iterator[str]:
    if record.version != VERSION:
        yield f"written as version {record.version}, this is {VERSION}"
        return
    recorded = {claim.id: (claim.says, [p.id for p in claim.proofs]) for claim in record.claims}
    present = {one.id: (one.says, [p.id for p in one.proofs]) for one in current}
    old = {proof.id: proof.sources for claim in record.claims for proof in claim.proofs}
    both = [name for name in present if name in recorded]
    for label, names in (
        ("new", [name for name in present if name not in recorded]),
        ("gone", [name for name in recorded if name not in present]),
        ("reworded or proven otherwise", [n for n in both if recorded[n] != present[n]]),
        ("sources changed since", [n for n in old if n in digests and digests[n] != old[n]]),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield f"{label}: {', '.join(names[:3])}{more}"
