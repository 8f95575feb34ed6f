"""``ringproof card import``: what it writes, what it refuses, what it says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from checks.importing.foreign import CARD, SKILL, kite_roots, write_skill
from ringproof.cards import find_cards, load_card
from ringproof.cli.main import app
from ringproof.errors import InputError


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["card", "import", *map(str, arguments)])


def _refused(result: Result) -> str:
    assert isinstance(result.exception, InputError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    return write_skill(tmp_path / "theirs" / "kites", CARD, SKILL, **{"scripts/fly.sh": "echo\r\n"})


def test_a_skill_is_written_whole(tmp_path: Path, skill: Path) -> None:
    (skill / "scripts/fly.sh").chmod(0o755)
    done = _run(skill, "--output", tmp_path / "ours")
    assert done.exit_code == 0, done.output
    made = tmp_path / "ours" / "kites"
    assert (made / "SKILL.md").read_bytes() == SKILL.encode()
    assert (made / "scripts/fly.sh").read_bytes() == b"echo\r\n"
    assert os.access(made / "scripts/fly.sh", os.X_OK)
    assert list(find_cards(tmp_path / "ours")) == ["kites"]
    assert load_card(made / "card.yaml").title == "kite_flying"
    assert sorted(path.name for path in made.rglob("*") if path.is_file()) == [
        "SKILL.md",
        "card.yaml",
        "fly.sh",
    ]


def test_the_report_says_what_became_of_each_key(tmp_path: Path, skill: Path) -> None:
    kite_roots(tmp_path)
    roots = ("--upstream", f"air/kite=git:{tmp_path / 'kite'}@main")
    done = _run(skill, "--output", tmp_path / "o", *roots, "--json", tmp_path / "r.json")
    assert done.exit_code == 0, done.output
    assert "kites: 39 statements, 36 unproven" in done.output
    for line in (
        "  known_constraints -> 2 constraints",
        "  nothing -> nothing: it is empty",
        "  documents -> 2 of 4 fences and 1 of 1 path:line mentions anchored",
        "  evidence: 2 exists, 1 not looked up, 1 missing, 1 prose",
    ):
        assert line in done.output.splitlines()
    said: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())
    assert said["total"] == {"cards": 1, "statements": 39, "unproven": 36, "anchors": 3}
    (one,) = said["skills"]
    assert one["keys"]["failure_modes"] == {"pitfalls": 2, "claims": 3}
    assert one["fences"] == {"found": 4, "anchored": 2}
    assert one["lists"]["anchors"] == 3


def test_json_on_stdout_is_nothing_but_json(tmp_path: Path, skill: Path) -> None:
    done = _run(skill, "--output", tmp_path / "o", "--json", "-")
    assert json.loads(done.stdout)["version"] == 1


def test_several_skills_at_once(tmp_path: Path, skill: Path) -> None:
    other = write_skill(tmp_path / "theirs" / "planes")
    done = _run(skill, other, "--output", tmp_path / "o")
    assert done.exit_code == 0
    assert list(find_cards(tmp_path / "o")) == ["kites", "planes"]
    twin = write_skill(tmp_path / "more" / "kites")
    assert "second skill of that name" in _refused(_run(skill, twin, "--output", tmp_path / "p"))
    assert not (tmp_path / "p").exists()


def test_files_are_replaced_only_by_force(tmp_path: Path, skill: Path) -> None:
    assert _run(skill, "--output", tmp_path).exit_code == 0
    card = tmp_path / "kites" / "card.yaml"
    card.write_text("mine")
    assert "use --force" in _refused(_run(skill, "--output", tmp_path))
    assert card.read_text() == "mine"
    assert _run(skill, "--output", tmp_path, "--force").exit_code == 0
    assert load_card(card).title == "kite_flying"


def test_output_over_the_input_is_refused(tmp_path: Path, skill: Path) -> None:
    before = sorted(skill.rglob("*"))
    for output in (skill.parent, skill, skill / "deep"):
        assert "overlaps" in _refused(_run(skill, "--output", output, "--force"))
    inside = write_skill(tmp_path / "o" / "kites" / "x" / "kites")
    assert "overlaps" in _refused(_run(inside, "--output", tmp_path / "o"))
    assert sorted(skill.rglob("*")) == before


def test_what_is_no_skill_is_refused(tmp_path: Path, skill: Path) -> None:
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "gone": "no such folder",
        tmp_path / "empty": "no SKILL.md",
        skill / "card.yaml": "is a file",
        write_skill(tmp_path / "half", CARD, None): "no SKILL.md",
    }
    for path, words in cases.items():
        assert words in _refused(_run(path, "--output", tmp_path / "o"))
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x7fELF\x02\x01\n" + bytes(range(256)) * 9, ":3: not UTF-8 text; save it as UTF-8"),
        (b"\0" * 50, ": is binary, not text; write the skill into it"),
        (b"", ": is empty; write the skill into it"),
        (b" \n\n", ": is empty; write the skill into it"),
        (SKILL.encode() + b"caf\xe9", ": not UTF-8 text; save it as UTF-8"),
        (SKILL.encode("utf-16"), ":1: not UTF-8 text; save it as UTF-8"),
    ],
    ids=["program", "nulls", "empty", "blank", "latin-1", "utf-16"],
)
def test_a_main_file_that_is_no_text_is_refused(
    tmp_path: Path, skill: Path, content: bytes, words: str
) -> None:
    (skill / "SKILL.md").write_bytes(content)
    said = _refused(_run(skill, "--output", tmp_path / "o"))
    assert f"{skill / 'SKILL.md'}" in said and words in said
    assert not (tmp_path / "o").exists()


def test_a_main_file_with_accents_and_a_byte_order_mark_is_text(
    tmp_path: Path, skill: Path
) -> None:
    (skill / "SKILL.md").write_bytes(b"\xef\xbb\xbf" + SKILL.encode() + "café\n".encode())
    assert _run(skill, "--output", tmp_path / "o").exit_code == 0


def test_a_card_that_is_no_text_is_refused(tmp_path: Path, skill: Path) -> None:
    (skill / "card.yaml").write_bytes(b"title: caf\xe9\n")
    assert "card.yaml:1: not UTF-8" in _refused(_run(skill, "--output", tmp_path / "o"))
    (skill / "card.yaml").unlink()
    (skill / "card.yaml").mkdir()
    assert "is a folder" in _refused(_run(skill, "--output", tmp_path / "o"))
    assert not (tmp_path / "o").exists()


def test_bad_roots_are_refused_before_anything_is_written(tmp_path: Path, skill: Path) -> None:
    for root, words in (
        ("x", "is not NAME=SPEC"),
        ("kite=git:" + str(tmp_path), "OWNER/NAME"),
        ("a/b=svn:x", "is not an upstream"),
    ):
        assert words in _refused(_run(skill, "--output", tmp_path / "o", "--upstream", root))
    assert not (tmp_path / "o").exists()


def test_links_are_not_followed(tmp_path: Path, skill: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (skill / "notes.md").symlink_to(tmp_path / "secret")
    (skill / "loop").symlink_to(skill)
    done = _run(skill, "--output", tmp_path / "o")
    assert done.exit_code == 0
    assert "left out (a link, or not the skill's own): notes.md" in done.output
    assert not (tmp_path / "o/kites/notes.md").exists()
    (skill / "card.yaml").unlink()
    (skill / "card.yaml").symlink_to(tmp_path / "secret")
    made = _run(skill, "--output", tmp_path / "p")
    assert made.exit_code == 0
    assert "secret" not in (tmp_path / "p/kites/card.yaml").read_text()


def test_a_folder_that_is_no_single_skill_is_refused(
    tmp_path: Path, skill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringproof.importing.source.MAX_FILES", 2)
    assert "more than" in _refused(_run(skill, "--output", tmp_path / "o"))


def test_an_unwritable_output_is_one_line(tmp_path: Path, skill: Path) -> None:
    (tmp_path / "o").write_text("a file")
    assert "--output" in _refused(_run(skill, "--output", tmp_path / "o"))


def test_imported_skills_can_be_checked_linted_and_rendered(tmp_path: Path, skill: Path) -> None:
    kite_roots(tmp_path)
    git = f"air/kite=git:{tmp_path / 'kite'}"
    assert _run(skill, "--output", tmp_path / "o", "--upstream", f"{git}@main").exit_code == 0
    runner = CliRunner()
    where = ["--skills", str(tmp_path / "o"), "--upstream", git]
    checked = runner.invoke(app, ["anchors", "check", *where])
    assert checked.exit_code == 0, checked.output
    assert "3 holds" in checked.output
    linted = runner.invoke(app, ["lint", str(tmp_path / "o")])
    assert linted.exit_code in (0, 1), linted.output
    page = tmp_path / "o" / "kites" / "SKILL.md"
    block = "<!-- ringproof:begin constraints -->\n<!-- ringproof:end -->\n"
    page.write_text(f"{SKILL}\n{block}")
    rendered = runner.invoke(app, ["render", "--skills", str(tmp_path / "o")])
    assert rendered.exit_code == 0, rendered.output
    assert "slack_ratio must be above zero" in page.read_text()
