"""What holds of each skill as a document: valid, within its budget, nothing left unnamed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from checks.skills.shared import REPOSITORY
from ringproof.cards import Card, PackageUpstream, load_card

SKILLS = sorted(path.parent for path in (REPOSITORY / "skills").glob("*/SKILL.md"))
MAX_LINES = 500
MAX_TOKENS = 5000
MAX_WORDS = 1100
MAX_BYTES = 60_000  # of an installed skill, folders included
CHARACTERS_PER_TOKEN = 3  # a cautious guess: English prose has 4, tables and code fewer

needs_validator = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="skills-ref needs Python 3.11"
)


@pytest.fixture(params=SKILLS, ids=lambda path: path.name)
def skill(request):
    return request.param


def text_of(skill: Path) -> str:
    return (skill / "SKILL.md").read_text(encoding="utf-8")


def card_of(skill: Path) -> Card:
    return load_card(REPOSITORY / "cards" / skill.name / "card.yaml")


def test_all_three_are_looked_at():
    names = {"dynamic-context-parallel", "dynamic-cp-cuda-graphs", "hierarchical-context-parallel"}
    assert names <= {path.name for path in SKILLS}


@needs_validator
def test_valid_for_the_reference_validator(tmp_path, skill):
    from skills_ref import validate

    assert validate(skill) == []
    renamed = tmp_path / "another-name"
    renamed.mkdir()
    (renamed / "SKILL.md").write_text(text_of(skill), encoding="utf-8")
    assert validate(renamed), "the validator does object to something"


@needs_validator
def test_frontmatter_is_the_safe_subset(skill):
    from skills_ref import read_properties

    front = text_of(skill).split("\n---\n", 1)[0]
    properties = read_properties(skill)
    assert re.search(r'^description: "[^\n]+"$', front, re.MULTILINE)
    assert len(properties.description) <= 1024
    assert properties.license == "Apache-2.0"
    assert set(properties.metadata) == {"author", "version", "tags"}
    assert all(isinstance(value, str) for value in properties.metadata.values())


def test_body_is_within_budget(skill):
    body = text_of(skill).split("\n---\n", 1)[1]
    assert len(body.splitlines()) < MAX_LINES
    assert len(body) < MAX_TOKENS * CHARACTERS_PER_TOKEN
    assert len(body.split()) <= MAX_WORDS
    assert "..." not in re.sub(r"`[^`\n]+`", "", body), "commands are whole"


def test_an_installed_skill_is_small(skill):
    parts = (skill, *skill.rglob("*"))
    assert sum(part.stat().st_size for part in parts) < MAX_BYTES


def test_every_reference_is_there_and_named(skill):
    named = set(re.findall(r"references/[\w-]+\.md", text_of(skill)))
    assert named == {f"references/{path.name}" for path in (skill / "references").iterdir()}


def test_packages_of_the_card_are_the_releases_asked_for(skill):
    upstreams = card_of(skill).upstreams.values()
    packages = {u.package: u.version for u in upstreams if isinstance(u, PackageUpstream)}
    assert packages == {
        "megatron-core": "0.16.1",
        "transformer-engine": "2.20.2",
        "megatron-bridge": "0.3.1",
    }


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
