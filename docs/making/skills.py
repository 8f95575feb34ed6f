"""A page for each skill, made of its card, its lock and the evidence records."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.making.templating import filled
from ringproof.errors import InputError
from ringproof.harness.anchors.lock import LOCK_FILE, Lock, permalink, read_lock
from ringproof.harness.cards import (
    Anchor,
    Card,
    ProofKind,
    find_cards,
    load_card,
    statements,
)
from ringproof.harness.cards.model import GpuNeed
from ringproof.harness.cards.proof import parse_proof
from ringproof.harness.proofs.verdicts import Verdict
from ringproof.harness.rendering import versions

Record = Mapping[str, Any]
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_DESCRIPTION = re.compile(r'^description: "?(.+?)"?$', re.MULTILINE)


@dataclass(frozen=True)
class Skill:
    """Everything that a skill's page is made of.

    Attributes:
        name: Folder of the skill.
        title: First heading of its ``SKILL.md``.
        lock: Places of its anchors; without it no permalinks.
        records: Evidence records by environment class.
    """

    name: str
    title: str
    card: Card
    lock: Lock | None
    records: Mapping[str, Record]

    def verdicts(self, statement: str) -> dict[str, Record]:
        """What each environment found about a statement."""
        return {
            environment: claim
            for environment, record in self.records.items()
            for claim in record["claims"]
            if claim["id"] == statement
        }


def read_skills(root: Path) -> list[Skill]:
    """Read the skills of a repository, in the order of their names.

    Raises:
        InputError: A card cannot be read, or its lock is older than the card.
    """
    found = []
    for name, path in sorted(find_cards(root / "skills").items()):
        text = (root / "skills" / name / "SKILL.md").read_text("utf-8")
        title = _TITLE.search(text)
        records = {
            record.parent.name: json.loads(record.read_text("utf-8"))
            for record in sorted((root / "evidence").glob(f"*/{name}.json"))
        }
        card, lock = load_card(path), read_lock(path.with_name(LOCK_FILE))
        stale = next(versions.lock_differences(card, lock), None) if lock else None
        if stale is not None:
            problem = f"is older than the card: it {stale}"
            raise InputError(f"{name}/{LOCK_FILE}", None, problem, "run `ringproof anchors lock`")
        shown = title[1].replace("`", "") if title else name
        found.append(Skill(name, shown, card, lock, records))
    return found


def skill_page(skill: Skill) -> str:
    """The page of one skill as Markdown with HTML."""
    return filled(
        "skill.md.jinja",
        skill=skill,
        card=skill.card,
        status=[
            {"topic": topic.replace("_", " "), "verdict": verdict, "environment": environment}
            for environment, record in skill.records.items()
            for topic, verdict in record["validation_status"].items()
        ],
        records=[_record(*item) for item in skill.records.items()],
        meanings=[(verdict.value, verdict.meaning) for verdict in Verdict],
        checked=lambda line: versions.checked(skill.card, line),
        can_train=versions.can_train,
        proofs=lambda item: list(_proofs(skill, item.id, item.proof)),
        found=lambda item: skill.verdicts(item.id),
        scope={statement.id: statement.lines for statement in statements(skill.card)},
        need=_need,
        anchors=[_anchor(skill, anchor) for anchor in skill.card.anchors],
        matrix=list(versions.matrices(skill.card, skill.lock)) if skill.lock else [],
    )


def overview_page(skills: Sequence[Skill]) -> str:
    """The list of skills, with what is proven of each."""
    rows = []
    for skill in skills:
        record = next(iter(skill.records.values()), None)
        rows.append(
            {
                "skill": skill,
                "statements": len(statements(skill.card)),
                "pitfalls": len(skill.card.pitfalls),
                "totals": record["totals"] if record else None,
                "about": record["about_upstream"] if record else None,
            }
        )
    return filled("skills.md.jinja", rows=rows)


def pitfalls_page(skills: Sequence[Skill]) -> str:
    """All pitfalls by symptom, each with a link to its place on the page of its skill."""
    return filled("pitfalls.md.jinja", skills=skills, found=lambda s, item: s.verdicts(item.id))


def evidence_rows(skills: Sequence[Skill]) -> list[dict[str, Any]]:
    """Verdicts and kinds of evidence by skill and environment."""
    rows = []
    for skill in skills:
        for environment, record in skill.records.items():
            kinds = Counter(
                (claim["verdict"], claim.get("evidence") or "none") for claim in record["claims"]
            )
            rows.append(
                {
                    "skill": skill,
                    "environment": environment,
                    "record": _record(environment, record),
                    "totals": record["totals"],
                    "about": record["about_upstream"],
                    "kinds": kinds,
                }
            )
    return rows


def _record(environment: str, record: Record) -> dict[str, Any]:
    where = record["environment"]
    return {
        "environment": environment,
        "day": record["started"][:10],
        "torch": where["torch"],
        "python": where["python"],
        "gpus": len(where["gpus"]),
        "commit": where["commit"][:12],
        "totals": record["totals"],
        "about": record["about_upstream"],
    }


def _need(item: Any) -> str:
    if isinstance(item.needs, GpuNeed):
        return f"needs {item.needs.gpus} GPUs"
    return "runs on a CPU" if item.needs == "cpu" else f"needs an {item.needs}"


def _proofs(skill: Skill, statement: str, entries: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The proofs of a statement, with what each environment recorded of them."""
    ran = {
        proof["id"]: (environment, proof)
        for environment, claim in skill.verdicts(statement).items()
        for proof in claim["proofs"]
    }
    for entry in entries:
        proof = parse_proof(entry)
        environment, recorded = ran.get(proof.id, ("", {}))
        read_at = {item.removeprefix("executed ") for item in recorded.get("upstream", ())}
        yield {
            "kind": {ProofKind.PYTEST: "test", ProofKind.ANCHOR: "anchor"}.get(proof.kind, "none"),
            "target": proof.target,
            "outcome": recorded.get("outcome", "not run"),
            "environment": environment,
            "evidence": recorded.get("evidence", ""),
            "upstream": [_shortened(item) for item in sorted(read_at)],
        }


def _shortened(place: str) -> str:
    """``NVIDIA/Megatron-LM git:COMMIT`` with a commit of twelve digits."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", place)


def _anchor(skill: Skill, anchor: Anchor) -> dict[str, Any]:
    """An anchor and its places, each with a permalink where the commit is known."""
    found = versions.found_places(skill.card, skill.lock, anchor) if skill.lock else ()
    places = [
        {
            "version": version.label,
            "repository": locked.repo or locked.package,
            "start": place.start,
            "end": place.end,
            "link": permalink(locked, place),
            "whole": place.missing == 0,
        }
        for version, locked, place in found
    ]
    return {"anchor": anchor, "where": versions.home(skill.card, anchor), "places": places}
