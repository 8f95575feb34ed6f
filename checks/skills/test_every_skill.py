"""What holds of each skill as a document: valid, within its budget, nothing left unnamed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from checks.skills.fresh_process import REPOSITORY

SKILLS = sorted(path.parent for path in (REPOSITORY / "skills").glob("*/SKILL.md"))
MAX_LINES = 500
MAX_TOKENS = 5000
CHARACTERS_PER_TOKEN = 3  # a cautious guess: English prose has 4, tables and code fewer

needs_validator = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="skills-ref needs Python 3.11"
)


@pytest.fixture(params=SKILLS, ids=lambda path: path.name)
def skill(request):
    return request.param


def text_of(skill: Path) -> str:
    return (skill / "SKILL.md").read_text(encoding="utf-8")


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
    assert {"## Instructions", "## Examples"} <= set(body.splitlines())


def test_every_reference_is_there_and_named(skill):
    named = set(re.findall(r"references/[\w-]+\.md", text_of(skill)))
    assert named == {f"references/{path.name}" for path in (skill / "references").iterdir()}
