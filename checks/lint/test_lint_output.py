"""The command: formats, exit codes, documentation, speed, and our own skills."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from checks.findings.sarif_structure import sarif_problems
from checks.lint.skill_folder import make_skill, report_on
from ringproof.cli.lint import lint
from ringproof.errors import InputError
from ringproof.lint.rules import RULES

ROOT = Path(__file__).parents[2]
BODY = "[x](a%0A::error::b,c.md)\n\n```bash\necho 'a\n```\n"


def run(*arguments: object) -> tuple[int, str, BaseException | None]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(lint)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.exception


def test_text_and_exit_codes(tmp_path: Path) -> None:
    assert run(make_skill(tmp_path))[0] == 0
    code, text, _ = run(make_skill(tmp_path, BODY))
    assert code == 1
    assert re.search(r"SKILL\.md:8: RP301 this does not parse", text)
    assert "1 skills, 1 files: 2 errors, 0 warnings" in text
    assert run(make_skill(tmp_path, BODY), "--exit-zero")[0] == 0
    assert run(make_skill(tmp_path, BODY), "--ignore", "RP")[0] == 0
    (tmp_path / "empty").mkdir()
    refused = run(tmp_path / "empty")[2]
    assert isinstance(refused, InputError)  # which the main function turns into exit code 2
    assert "0 files scanned" in str(refused)
    assert isinstance(run(make_skill(tmp_path), "--select", "RP9")[2], InputError)


def test_json_goes_to_stdout_or_a_file(tmp_path: Path) -> None:
    folder = make_skill(tmp_path, BODY)
    _, text, _ = run(folder, "--json", "-")
    report = json.loads(text)
    assert run(folder, "--format", "json")[1] == text
    assert run(folder, "--json", tmp_path / "report.json")[0] == 1
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == report
    assert run(folder, "--format", "github", "--sarif", tmp_path / "report.sarif")[0] == 1
    log = json.loads((tmp_path / "report.sarif").read_text("utf-8"))
    assert sarif_problems(log) == []
    assert [rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]] == [
        rule.id for rule in RULES
    ]
    silence = "<!-- ringproof: ignore RP301 because it is a template -->\n"
    quiet = make_skill(tmp_path, BODY.replace("```bash", f"{silence}```bash"), name="two")
    results = json.loads(run(quiet, "--format", "sarif")[1])["runs"][0]["results"]
    assert [(item["ruleId"], "suppressions" in item) for item in results] == [
        ("RP201", False),
        ("RP301", True),
    ]
    for both in (("--json", "-", "--format", "sarif"), ("--sarif", "-")):
        assert isinstance(run(folder, *both)[2], InputError)
    assert (report["pass"], report["skills"], report["files"]) == (False, 1, 1)
    assert [item["rule"] for item in report["findings"]] == ["RP201", "RP301"]
    assert {"rule", "name", "level", "path", "line", "message"} == report["findings"][0].keys()


def test_github_annotations_cannot_be_forged(tmp_path: Path) -> None:
    _, text, _ = run(make_skill(tmp_path, BODY, name="a,b::c"), "--format", "github")
    lines = text.splitlines()
    assert all(
        re.match(r"::(error|warning) file=[^,:]+,line=\d+,title=RP\d{3}::", x) for x in lines
    )
    assert not any(line.startswith("::error::b") for line in lines)
    assert len(lines) == 3


def test_escape_sequences_do_not_reach_the_terminal(tmp_path: Path) -> None:
    head = '---\nname: one\n"\\e[2J\\u202Ekey": x\ndescription: x\n---\n'
    for output in ("text", "github", "json", "sarif"):
        text = run(make_skill(tmp_path, head=head), "--format", output)[1]
        assert "RP102" in text
        assert "\x1b[2J" not in text and "\u202e" not in text


def test_the_documentation_has_every_rule_and_no_other() -> None:
    page = (ROOT / "docs" / "lint.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^### (RP\d{3}) `([a-z0-9-]+)`", page, re.M))
    assert documented == {rule.id: rule.name for rule in RULES}
    sections = re.split(r"^### ", page, flags=re.M)[1:]
    for rule, section in zip(RULES, sections, strict=True):
        assert rule.what in section, rule.id
        assert f"({rule.level})" in section, rule.id
        for part in ("Why:", "Example:", "Silence:"):
            assert part in section, (rule.id, part)


def test_our_own_skills_are_clean() -> None:
    report = report_on(ROOT / "skills")
    assert report.findings == ()
    assert report.files >= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "[" * 20000,
        "<!--" * 9000,
        "`" * 40000,
        "curl " * 20000,
        "> " * 5000 + "x",
        "curl x |\\\n" * 9000,
        "sk-" * 50000,
        "<div hidden>" * 5000,
        "*a " * 20000,
        "x" * 200000,
    ],
)
@pytest.mark.timeout(60)  # linear in its size; quadratic would be minutes
def test_hostile_text_takes_no_long_time(tmp_path: Path, text: str) -> None:
    folder = make_skill(tmp_path, text)
    (folder / "a.py").write_text(text, encoding="utf-8")
    assert report_on(folder).files == 2
