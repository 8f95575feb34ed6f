"""What holds of each skill as a document, beside what `ringproof lint` asks of any skill."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from checks.skills.shared import REPOSITORY
from ringproof.cards import Card, PackageUpstream, load_card

SKILLS = sorted(path.parent for path in (REPOSITORY / "skills").glob("*/SKILL.md"))
# Commands that the texts of a skill give as the card has them.
SHOWN = {
    "dynamic-context-parallel": ("dev-train",),
    "dynamic-cp-cuda-graphs": ("pr6479-run", "size-the-bank"),
    "hierarchical-context-parallel": ("logs-groups", "megatron-smoke", "bridge-smoke"),
}
NEWER = {("megatron-core", version) for version in ("0.17.1", "0.18.2", "0.19.2")}
MAX_WORDS = 1100
MAX_BYTES = 60_000  # of an installed skill, folders included


@pytest.fixture(params=SKILLS, ids=lambda path: path.name)
def skill(request):
    return request.param


def text_of(skill: Path) -> str:
    return (skill / "SKILL.md").read_text(encoding="utf-8")


def card_of(skill: Path) -> Card:
    return load_card(REPOSITORY / "cards" / skill.name / "card.yaml")


def test_a_skill_is_within_its_budget(skill):
    body = text_of(skill).split("\n---\n", 1)[1]
    assert len(text_of(skill).split()) <= MAX_WORDS, "frontmatter included"
    assert "..." not in re.sub(r"`[^`\n]+`", "", body), "commands are whole"
    installed = [part for part in skill.rglob("*") if "evals" not in part.relative_to(skill).parts]
    assert sum(part.stat().st_size for part in (skill, *installed)) < MAX_BYTES


def test_a_skill_carries_its_licence(skill):
    """Copied alone, too; its evals are left out by `ringproof skills install`."""
    assert (skill / "LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()


def test_a_skill_names_no_address_that_is_not_set(skill):
    texts = [path.read_text() for path in skill.rglob("*.md")]
    assert [text for text in texts if "OWNER" in text] == []


def test_packages_of_the_card_are_the_releases_asked_for(skill):
    upstreams = card_of(skill).upstreams.values()
    packages = {(u.package, u.version) for u in upstreams if isinstance(u, PackageUpstream)}
    assert packages - NEWER == {
        ("megatron-core", "0.16.1"),
        ("transformer-engine", "2.20.2"),
        ("megatron-bridge", "0.3.1"),
    }
    assert ("megatron-core", "0.19.2") in packages


def test_commands_of_the_texts_are_those_of_the_card(skill):
    """Word for word; other commands are on the card's page only."""
    texts = (text_of(skill), *(path.read_text() for path in (skill / "references").glob("*.md")))
    commands = {command.id: command.run.split() for command in card_of(skill).commands}
    for name in SHOWN[skill.name]:
        assert [word for word in commands[name] if word not in " ".join(texts)] == [], name


@pytest.mark.parametrize("name", ["dynamic-cp-cuda-graphs", "hierarchical-context-parallel"])
def test_every_pitfall_is_found_by_its_message(name):
    """The reference lists all of them; SKILL.md names the worst five."""
    skill = REPOSITORY / "skills" / name
    known = {pitfall.id for pitfall in card_of(skill).pitfalls}
    listed = (skill / "references" / "pitfalls.md").read_text(encoding="utf-8")
    assert known == {name for name in known if f"| `{name}` " in listed}
    assert sum(f"| `{name}` " in text_of(skill) for name in known) == 5


def test_evals_have_near_misses(skill):
    document = json.loads((skill / "evals" / "evals.json").read_text(encoding="utf-8"))
    assert document["skill_name"] == skill.name
    cases = document["evals"]
    assert len({case["id"] for case in cases}) == len(cases)
    assert all(case["prompt"] and case["expected_output"] and case["assertions"] for case in cases)
    negative = [case for case in cases if case["id"].startswith("negative-")]
    assert len(negative) >= 5
    assert len(cases) - len(negative) >= (8 if skill.name == "dynamic-context-parallel" else 5)
    named = re.compile(rf"(?<!--){skill.name}(?!-sizes)")  # options have the same words
    assert [case["id"] for case in cases if named.search(case["prompt"])] == [], "must not name it"
