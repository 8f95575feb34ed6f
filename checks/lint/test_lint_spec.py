"""Our reading of the specification against the reference validator's."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.lint.skill_folder import HEAD, make_skill, report_on, rules_of
from ringproof.lint import spec

NEEDS_SKILLS_REF = pytest.mark.skipif(not spec.has_skills_ref(), reason="skills-ref: Python 3.11")
OURS = ("RP101", "RP102", "RP103", "RP104", "RP105", "RP108", "RP203")
FLOW = HEAD.replace("---\nname", '---\nmetadata: {a: "1"}\nname')


@NEEDS_SKILLS_REF
def test_rp106_fires_where_only_the_reference_refuses(tmp_path: Path) -> None:
    report = report_on(make_skill(tmp_path, head=FLOW))
    assert ([item.rule for item in report.findings], report.skills_ref) == (["RP106"], True)


def test_rp106_stays_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rules_of(make_skill(tmp_path)) == []
    # What our rules found is not said a second time.
    assert rules_of(make_skill(tmp_path, head=HEAD.replace("{name}", "two", 1))) == ["RP103"]
    monkeypatch.setattr(spec, "has_skills_ref", lambda: False)
    assert rules_of(make_skill(tmp_path, head=FLOW)) == []


def test_a_name_may_have_64_characters(tmp_path: Path) -> None:
    assert rules_of(make_skill(tmp_path, name="a" * 64)) == []
    assert rules_of(make_skill(tmp_path, name="a" * 65)) == ["RP103"]


@pytest.mark.parametrize(
    ("key", "hinted"),
    [("when_to_use", True), ("argument-hint", True), ("model", False), ("hooks", False)],
)
def test_only_text_for_a_model_belongs_into_the_description(
    tmp_path: Path, key: str, hinted: bool
) -> None:
    head = HEAD.replace("---\nname", f"---\n{key}: x\nname")
    (found,) = report_on(make_skill(tmp_path, head=head)).findings
    assert found.rule == "RP108"
    assert ("the description, too" in found.message) is hinted


NAMES = st.text("ab-A1é_ .", max_size=66) | st.just("one") | st.sampled_from(["a" * 64, "a" * 65])
VALUES = st.text("ab :#é", max_size=40) | st.sampled_from(["x" * 1024, "x" * 1025])
KEYS = st.sampled_from(["name", "description", "license", "compatibility", "allowed-tools", "tags"])


@NEEDS_SKILLS_REF
@settings(max_examples=150)
@given(st.dictionaries(KEYS, VALUES, max_size=4), NAMES, st.booleans())
def test_our_checks_and_the_reference_agree(data: dict[str, str], name: str, named: bool) -> None:
    from skills_ref.parser import ParseError, parse_frontmatter
    from skills_ref.validator import validate_metadata

    fields = {key: value for key, value in data.items() if key != "compatibility" or value}
    fields |= {"name": name} if named else {}
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())
    with tempfile.TemporaryDirectory() as root:
        folder = make_skill(Path(root), head=f"---\n{text}---\n".replace("{name}", "one"))
        ours = [rule for rule in rules_of(folder) if rule in OURS]
        content = (folder / "SKILL.md").read_text(encoding="utf-8")
        try:
            theirs = validate_metadata(parse_frontmatter(content)[0], folder)
        except ParseError as error:
            theirs = [str(error)]
    # The one difference: we want the 1 to 500 characters of the specification counted from 1.
    assert bool(ours) == bool(theirs), (ours, theirs)
