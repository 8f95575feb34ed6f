"""Evidence records: the committed JSON, and checks whether it is stale.

There is one file for each skill and environment class::

    {"version": 2, "ringproof": V, "skill": NAME, "title": TEXT, "summary": TEXT,
     "quick": false,
     "environment": {"class", "python", "torch", "platform", "cpus", "gpus", "commit", "dirty"},
     "started": "2026-01-31T12:00:00Z", "seconds": S,
     "claims": [{"id", "kind", "says", "lines": [LINE], "verdict", "reason", "seconds",
                 "evidence": KIND | null, "executed": [LINE], "read": [LINE],
                 "proofs": [{"id", "kind", "outcome", "seconds", "tests": {STATE: N},
                             "numbers": {NAME: {"min", "max", "count"}},
                             "notes": {NAME: [TEXT]}, "detail", "sources": SHA256,
                             "evidence": KIND | null, "upstream": [TEXT]}]}],
     "validation_status": {TOPIC: VERDICT},
     "about_upstream": {KIND: N, "none": N},
     "totals": {"proven": N, "in-reference": N, "partly": N, "refuted": N, "unproven": N,
                "not-here": N, "proofs": N, "proofs_executed": N}}
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ringproof import __version__
from ringproof.harness.cards.model import Card
from ringproof.harness.cards.statements import Statement, StatementKind
from ringproof.harness.proofs.environment import Environment
from ringproof.harness.proofs.executed import Evidence, Touch
from ringproof.harness.proofs.verdicts import ProofResult, StatementResult, Verdict

VERSION = 2
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
    """All verdicts on one skill."""

    skill: str
    card: Card
    statements: tuple[StatementResult, ...]

    def count(self, verdict: Verdict) -> int:
        """Count the statements with this verdict."""
        return sum(result.verdict is verdict for result in self.statements)

    @property
    def about_upstream(self) -> dict[str, int]:
        """Count the statements about upstream by the kind of their evidence.

        These name lines of upstream, or rest on upstream's code. Those that are not proven count as
        ``none``, and anchors that no statement uses not at all.
        """
        found = dict.fromkeys((*(kind.value for kind in Evidence), "none"), 0)
        for result in self.statements:
            ground = result.ground
            rests = ground is not None and ground.evidence in (Evidence.UPSTREAM, Evidence.READ)
            if result.statement.kind is StatementKind.ANCHOR:
                continue
            if result.statement.lines or rests:
                settled = result.verdict in (Verdict.PROVEN, Verdict.IN_REFERENCE)
                found[ground.evidence.value if settled and ground else "none"] += 1
        return found

    @property
    def proofs(self) -> dict[str, ProofResult]:
        """Return the distinct proofs by id, without ``unproven`` declarations."""
        return {
            proof.id: proof
            for result in self.statements
            for proof in result.proofs
            if proof.kind.value != "unproven"
        }

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
        "claims": [_claim(statement) for statement in result.statements],
        "validation_status": _status(result),
        "about_upstream": result.about_upstream,
        "totals": {
            **{verdict.value: result.count(verdict) for verdict in Verdict},
            "proofs": len(result.proofs),
            "proofs_executed": result.executed,
        },
    }


def _claim(result: StatementResult) -> dict[str, Any]:
    ground = result.ground
    return {
        "id": result.statement.id,
        "kind": result.statement.kind.value,
        "says": result.statement.says,
        "lines": list(result.statement.lines),
        "verdict": result.verdict.value,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "evidence": None if ground is None else ground.evidence.value,
        "executed": [] if ground is None else list(ground.executed),
        "read": [] if ground is None else list(ground.read),
        "proofs": [_proof(proof) for proof in result.proofs],
    }


def _proof(proof: ProofResult) -> dict[str, Any]:
    return {
        "id": proof.id,
        "kind": proof.kind.value,
        "outcome": proof.state.value,
        "seconds": proof.seconds,
        "tests": {state.value: count for state, count in proof.tests.items()},
        "numbers": {
            name: {"min": spread.minimum, "max": spread.maximum, "count": spread.count}
            for name, spread in proof.numbers.items()
        },
        "notes": {name: list(values) for name, values in proof.notes.items()},
        "detail": proof.detail,
        "sources": proof.sources,
        "evidence": None if proof.evidence is None else proof.evidence.value,
        "upstream": list(dict.fromkeys(_words(touch) for touch in proof.touches)),
    }


def _words(touch: Touch) -> str:
    how = "executed" if touch.executed else "read"
    return f"{how} {touch.repo} {touch.name.partition('#')[0]}"


def _status(result: SkillResult) -> dict[str, str]:
    """Return the worst verdict of the deciding statements, for ``validation_status``.

    An anchor that a statement uses has no verdict of its own, so the result of its proof decides.
    """
    verdicts = {item.statement.id: item.verdict for item in result.statements}
    for proof in result.proofs.values():
        if proof.kind.value == "anchor":
            passed = proof.state.value == "passed"
            failed = Verdict.REFUTED if proof.executed else Verdict.NOT_HERE
            verdicts.setdefault(
                proof.id.removeprefix("anchor:"), Verdict.PROVEN if passed else failed
            )
    topics = {}
    for topic, deciding in result.card.validation_status.items():
        found = [verdicts[name] for name in deciding if name in verdicts]
        worst = next((verdict for verdict in _WORST_FIRST if verdict in found), Verdict.UNPROVEN)
        topics[topic] = worst.value
    return topics


def recorded_seconds(folder: Path, skill: str) -> dict[str, float]:
    """Return how long each proof of a skill took according to its records, by proof id.

    A record that is not readable is left out.
    """
    found: dict[str, float] = {}
    for path in sorted(folder.glob(f"*/{skill}.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            claims = json.loads(path.read_text("utf-8"))["claims"]
            proofs = [proof for claim in claims for proof in claim["proofs"]]
            found.update({proof["id"]: float(proof["seconds"]) for proof in proofs})
    return found


def stale_records(
    folder: Path,
    skill: str,
    current: Sequence[Statement],
    digests: Mapping[str, str | None],
) -> Iterator[str]:
    """Yield a line for each committed record of a skill that is stale.

    Args:
        folder: Folder with ``CLASS/SKILL.json``.
        digests: Current digests of the sources of proofs, by proof id.
    """
    for path in sorted(folder.glob(f"*/{skill}.json")):
        name = f"{folder.name}/{path.parent.name}/{path.name}"
        try:
            record = json.loads(path.read_text("utf-8"))
            reasons = list(_differences(record, current, digests))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            reasons = ["not readable as an evidence record"]
        if reasons:
            yield f"{name}: {'; '.join(reasons)}"


def _differences(
    record: Mapping[str, Any], current: Sequence[Statement], digests: Mapping[str, str | None]
) -> Iterator[str]:
    if record["version"] != VERSION:
        yield f"written as version {record['version']}, this is {VERSION}"
        return
    recorded = {claim["id"]: claim for claim in record["claims"]}
    present = {statement.id: statement for statement in current}
    changed = [
        name
        for name, statement in present.items()
        if name in recorded and not _same(recorded[name], statement)
    ]
    for label, names in (
        ("new", [name for name in present if name not in recorded]),
        ("gone", [name for name in recorded if name not in present]),
        ("reworded or proven otherwise", changed),
    ):
        if names:
            yield f"{label}: {_few(names)}"
    old = {proof["id"]: proof["sources"] for claim in record["claims"] for proof in claim["proofs"]}
    moved = [name for name, digest in old.items() if name in digests and digests[name] != digest]
    if moved:
        yield f"sources changed since: {_few(moved)}"


def _same(recorded: Mapping[str, Any], statement: Statement) -> bool:
    proofs = [proof["id"] for proof in recorded["proofs"]]
    return recorded["says"] == statement.says and proofs == [p.id for p in statement.proofs]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
