"""What became of refutations, and their records.

There is one file for each skill and environment class, ``evidence/CLASS/refuted-SKILL.json``::

    {"version": 1, "ringproof": V, "skill": NAME,
     "environment": {"class", "python", "torch", "platform", "cpus", "gpus", "commit", "dirty"},
     "refutations": [{"statement": ID, "outcome": OUTCOME, "digest": SHA256, "proof": NODE,
                      "failure": TEXT, "why": TEXT, "seconds": S, "sources": SHA256,
                      "commit": COMMIT, "dirty": BOOL}],
     "totals": {OUTCOME: N}}

Rows of older records have no ``sources``, and the commit of their record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from ringproof import __version__
from ringproof.cards import Statement, load_card, statements
from ringproof.cards.proof import covers
from ringproof.errors import InputError
from ringproof.prove.closure import SourceClosure
from ringproof.prove.environment import Environment
from ringproof.prove.touches import Evidence
from ringproof.refuting.refutations import (
    Excuse,
    Refutation,
    Refutations,
    load_refutations,
    refutation_digest,
)
from ringproof.styles import BAD, DOUBT, GOOD, NOTE

VERSION = 1
MOST = 3  # of the stale rows, which can be more than a hundred, in a sentence


class Fate(str, Enum):
    """Outcome of a refutation: its word, its style on a terminal, and what it means."""

    style: str
    meaning: str

    SEEN = "seen-to-fail", GOOD, "a proof failed with the edits in place"
    GREEN = "stayed-green", BAD, "every proof passed although the statement was false"
    BROKEN = "broken", BAD, "the edits did not apply, or no proof ran to its end with them"
    NOT_HERE = "not-here", NOTE, "upstream code that is edited is not on this machine"
    EXCUSED = "excused", DOUBT, "the card says why it has no refutation"
    NONE = "none", DOUBT, "the statement has no refutation"

    def __new__(cls, word: str, style: str, meaning: str) -> Fate:
        """Make a member whose value is its word."""
        member = str.__new__(cls, word)
        member._value_, member.style, member.meaning = word, style, meaning
        return member


UNWANTED = frozenset({Fate.GREEN, Fate.BROKEN})
"""What has to be mended."""


@dataclass(frozen=True)
class Refuted:
    """What became of the refutation of one statement.

    Attributes:
        digest: `refutation_digest` of what was tried; empty without a refutation.
        proof: Node id of the test that failed.
        failure: First line of its failure.
        why: Reason for any other outcome.
        sources: `SourceClosure.digest` of what the file of ``proof`` says itself, without the code
            that runs it; empty if it is not known.
        commit, dirty: Those of the checkout that tried it; see `Environment`.
    """

    statement: str
    outcome: Fate
    digest: str = ""
    proof: str = ""
    failure: str = ""
    why: str = ""
    seconds: float = 0.0
    sources: str = ""
    commit: str | None = None
    dirty: bool | None = None


def proof_sources(row: Refuted, closure: SourceClosure) -> str:
    """Return the digest of what the test that failed says itself; empty without one."""
    return (row.proof and closure.digest(row.proof.partition("::")[0], own=True)) or ""


def current_digest(statement: Statement, refutations: Refutations) -> str:
    """Return the digest of a statement's refutation or excuse; empty without one."""
    own = refutations.of(statement.id)
    if isinstance(own, Refutation):
        return refutation_digest(statement, own.edit)
    return refutation_digest(statement, ()) if isinstance(own, Excuse) else ""


def refuted_record(
    skill: str, environment: Environment, found: Iterable[Refuted]
) -> dict[str, Any]:
    """Return the record of one skill in the form of the module docstring."""
    rows, known = [*found], asdict(environment)
    totals = Counter(row.outcome for row in rows)
    return {
        "version": VERSION,
        "ringproof": __version__,
        "skill": skill,
        "environment": {"class": known.pop("name"), **known},
        "refutations": [{**asdict(row), "outcome": row.outcome.value} for row in rows],
        "totals": {fate.value: totals[fate] for fate in Fate if totals[fate]},
    }


class _Checkout(BaseModel):
    commit: str | None = None
    dirty: bool | None = None


class _RefutedRecord(BaseModel):
    version: int
    environment: _Checkout = _Checkout()
    refutations: tuple[dict[str, Any], ...]


def _rows(record: _RefutedRecord) -> tuple[Refuted, ...]:
    """Return the rows of a record; those of older records get its commit."""
    checkout = record.environment.model_dump()
    rows = TypeAdapter(tuple[Refuted, ...])
    return rows.validate_python([{**checkout, **row} for row in record.refutations])


def record_name(skill: str) -> str:
    """Return the name of a skill's record."""
    return f"refuted-{skill}.json"


def read_refuted(folder: Path, skill: str, environment: str = "*") -> dict[str, Refuted]:
    """Return what is recorded of a skill by statement, the best of all environments.

    A record that is not readable is left out.

    Args:
        environment: Class of the environment whose record alone is read.
    """
    rank = {fate: place for place, fate in enumerate(Fate)}
    best: dict[str, Refuted] = {}
    for path in sorted(folder.glob(f"{environment}/{record_name(skill)}")):
        try:
            record = _RefutedRecord.model_validate_json(path.read_bytes())
            rows = _rows(record) if record.version == VERSION else ()
        except (OSError, ValueError):
            continue
        for row in rows:
            known = best.get(row.statement)
            if known is None or rank[row.outcome] < rank[known.outcome]:
                best[row.statement] = row
    return best


def seen_to_fail(
    recorded: Mapping[str, Refuted],
    said: Sequence[Statement],
    refutations: Refutations,
    closure: SourceClosure,
) -> frozenset[str]:
    """Return the statements whose proofs failed, as recorded, under the refutation of today.

    Args:
        closure: Sources of today, with which those of a row are compared, if it has them.
    """
    return frozenset(
        one.id
        for one in said
        if one.id in recorded and _holds(recorded[one.id], one, refutations, closure)
    )


def _holds(
    row: Refuted, statement: Statement, refutations: Refutations, closure: SourceClosure
) -> bool:
    own = refutations.of(statement.id)
    wanted = own.proof if isinstance(own, Refutation) else ""
    return (
        row.outcome is Fate.SEEN
        and row.digest == current_digest(statement, refutations)
        and (not wanted or covers(wanted, row.proof))
        and (not row.sources or row.sources == proof_sources(row, closure))
    )


def seen_sentence(
    evidence: Path, cards: Mapping[str, Path], records: Iterable[Any], closure: SourceClosure
) -> str:
    """Say how many of the statements that were executed in upstream's code were seen to fail.

    Rows of the records that do not hold today do not count. The first of them are named, and so are
    refutations that do not fit their card. Without any of them, it says nothing.

    Args:
        evidence: Folder of the records.
        cards: ``card.yaml`` of each skill.
        records: Records of a run of the proofs; see `ringproof.prove.evidence`.
        closure: Sources of the tests.
    """
    executed, seen, stale, problems = 0, 0, list[str](), list[str]()
    for record in records:
        skill = record["skill"]
        said = statements(load_card(cards[skill]))
        try:
            rows = load_refutations(cards[skill], said)
        except InputError as error:  # the verdicts of the run must not be lost with it
            problems.append(f"; {error}")
            continue
        known = read_refuted(evidence, skill)
        failed = seen_to_fail(known, said, rows, closure)
        recorded = {name for name, row in known.items() if row.outcome is Fate.SEEN}
        stale += (f"{skill}/{name}" for name in sorted(recorded - failed))
        own = [
            claim["id"]
            for claim in record["claims"]
            if claim["evidence"] == Evidence.UPSTREAM.value and claim["kind"] != "anchor"
        ]
        executed += len(own)
        seen += len(failed.intersection(own))
    if not seen and not stale and not problems:
        return ""
    told = f"{seen} of the {executed} that were executed have a proof that was seen to fail"
    more = f" and {len(stale) - MOST} more" if len(stale) > MOST else ""
    told += f"; stale: {', '.join(stale[:MOST])}{more}" if stale else ""
    return told + "".join(problems)
