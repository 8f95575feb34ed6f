"""Configuration, and silencing in the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.lint.skill_folder import make_skill, report_on, rules_of
from checks.running import one_line
from ringproof.errors import InputError
from ringproof.lint.selection import LintConfig, read_config

WRONG = "```bash\necho 'a\n```\n"
TWO = f"# One\n\n{WRONG}\n# Two\n\n{WRONG}"


def silence(text: str, form: str = "ignore") -> str:
    return f"<!-- ringproof: {form} {text} -->\n"


def test_a_reason_silences_the_next_block_only(tmp_path: Path) -> None:
    assert rules_of(make_skill(tmp_path, TWO)) == ["RP301", "RP301"]
    one = TWO.replace("# Two\n\n", "# Two\n\n" + silence("RP301 because it is a template"))
    report = report_on(make_skill(tmp_path, one))
    assert [item.line for item in report.findings] == [8]
    assert [item.line for item in report.silenced] == [15]
    first = TWO.replace("# One\n\n", "# One\n\n" + silence("RP301 because it is a template"))
    assert [item.line for item in report_on(make_skill(tmp_path, first)).findings] == [15]


def test_a_file_can_be_silenced_as_a_whole(tmp_path: Path) -> None:
    text = silence("RP301, RP204 because all are templates", "ignore-file") + TWO
    report = report_on(make_skill(tmp_path, text))
    assert (report.findings, len(report.silenced)) == ((), 2)
    again = report_on(make_skill(tmp_path, text), obey=False)
    assert [item.rule for item in again.findings] == ["RP301", "RP301"]


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        ("RP301", ["RP001", "RP301"]),
        ("RP301 because", ["RP001", "RP301"]),
        ("RP302 because it is another rule", ["RP002", "RP301"]),
        ("RP999 because there is none", ["RP002", "RP301"]),
        ("RP301 because it is a template", []),
    ],
)
def test_a_comment_that_does_not_silence(tmp_path: Path, comment: str, found: list[str]) -> None:
    assert rules_of(make_skill(tmp_path, silence(comment) + WRONG)) == found


def test_a_silence_in_a_script_covers_the_next_line(tmp_path: Path) -> None:
    line = "exec(base64.b64decode(x))\n"
    folder = make_skill(tmp_path, "a.py\n")
    (folder / "a.py").write_text(f"# ringproof: ignore RP407 because of tests\n{line}{line}")
    assert [item.line for item in report_on(folder).findings] == [3]


def _config(tmp_path: Path, text: str) -> LintConfig:
    path = tmp_path / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


@pytest.mark.parametrize(
    ("table", "left"),
    [
        ("", ["RP201", "RP301"]),
        ('select = ["RP3"]', ["RP301"]),
        ('ignore = ["RP3"]', ["RP201"]),
        ('per-path = {"*/one/*" = ["RP2"]}', ["RP301"]),
        ('per-path = {"*/two/*" = ["RP2"]}', ["RP201", "RP301"]),
    ],
)
def test_configuration(tmp_path: Path, table: str, left: list[str]) -> None:
    config = _config(tmp_path, f"[tool.ringproof.lint]\n{table}\n")
    report = report_on(make_skill(tmp_path, f"[x](a.md)\n\n{WRONG}"), config=config)
    assert [item.rule for item in report.findings] == left


@pytest.mark.parametrize(
    "text",
    [
        "[tool.ringproof.lint]\nselect = 'RP3'\n",
        "[tool.ringproof.lint]\nselect = ['RP9']\n",
        "[tool.ringproof.lint]\nselect = ['']\n",
        "[tool.ringproof.lint]\nselects = ['RP3']\n",
        "[tool.ringproof.lint]\nper-path = ['RP3']\n",
        "[tool.ringproof]\nlint = 3\n",
        "[tool",
        f"a = {'[' * 50_000}",
    ],
)
def test_wrong_configuration_is_one_line(tmp_path: Path, text: str) -> None:
    with one_line():
        _config(tmp_path, text)


def test_no_table_means_the_defaults(tmp_path: Path) -> None:
    assert _config(tmp_path, "[project]\nname = 'x'\n") == LintConfig()
    with pytest.raises(InputError):
        read_config(tmp_path / "missing.toml")
