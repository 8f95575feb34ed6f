"""``ringproof evals run`` with assistants that are small scripts, since none is here."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ringproof.cards import find_cards
from ringproof.cli.main import app
from ringproof.errors import InputError
from ringproof.evals.cases import load_cases
from ringproof.evals.running import judged

ROOT = Path(__file__).parents[2]
NAME = "hierarchical-context-parallel"
READER = """
import pathlib, sys
prompt = sys.stdin.read()
assert prompt.strip()
for page in sorted(pathlib.Path(".claude/skills").rglob("*.md")):
    print(page.read_text())
"""
"""An assistant that recites the skill, and is silent without one."""
ECHO = "import sys; print(sys.argv[1])"


def assistant(folder: Path, program: str, *words: str) -> str:
    """A command line that runs a program."""
    script = folder / "assistant.py"
    script.write_text(program, encoding="utf-8")
    return shlex.join([sys.executable, str(script), *words])


def evals(*words: str) -> Result:
    return CliRunner().invoke(app, ["evals", *words, "--skills", str(ROOT / "skills")])


def answers(command: str, *words: str, code: int = 0) -> list[dict[str, Any]]:
    done = evals("run", "--cmd", command, "--json", "-", *words)
    assert done.exit_code == code, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)["answers"]
    return rows


def mean(rows: list[dict[str, Any]], arm: str) -> float:
    scores = [row["score"] for row in rows if row["arm"] == arm]
    return sum(scores) / len(scores)


def test_who_reads_the_skill_scores_and_who_has_none_does_not(tmp_path: Path) -> None:
    rows = answers(assistant(tmp_path, READER), "--skill", NAME, "--without")
    own = [row for row in rows if not row["id"].startswith("negative-")]
    assert mean(own, "without") == 0
    assert mean(own, "with") > 0.8
    assert all(row["seconds"] > 0 and row["state"] == "answered" for row in rows)


def test_the_prompt_is_an_argument_or_the_input(tmp_path: Path) -> None:
    case = load_cases(ROOT / "skills" / NAME, find_cards(ROOT / "skills")[NAME])[0]
    options = ("--skill", NAME, "--only", case.id)
    (row,) = answers(assistant(tmp_path, ECHO, "{prompt}"), *options)
    assert row["answer"].rstrip("\n") == case.prompt
    (row,) = answers(assistant(tmp_path, "import sys; print(sys.stdin.read())"), *options)
    assert row["answer"].rstrip("\n") == case.prompt


def test_the_folder_has_the_skill_and_the_files_but_not_the_answers(tmp_path: Path) -> None:
    listing = "import pathlib; print(*sorted(map(str, pathlib.Path('.').rglob('*'))), sep=chr(10))"
    command = assistant(tmp_path, listing)
    rows = answers(command, "--only", "mixed-evidence", "--without")
    there, alone = (set(row["answer"].split()) for row in rows)
    assert {row["arm"] for row in rows} == {"with", "without"}
    assert alone == {"mixed-evidence", "mixed-evidence/run.log"}
    assert f".claude/skills/{NAME}/SKILL.md" in there
    assert f".agents/skills/{NAME}/references/pitfalls.md" in there
    assert not [name for name in there if "evals" in name or "expectations" in name]


def test_an_answer_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen(['sh', '-c', 'sleep 3; touch {tmp_path}/late'])\n"
        "print('a2a+p2p 8 2', flush=True)\ntime.sleep(60)\n"
    )
    options = ("--only", "choose-beyond-kv-heads", "--timeout", "1")
    started = time.monotonic()
    (row,) = answers(assistant(tmp_path, program), *options, code=1)
    assert (row["state"], row["score"]) == ("timed out", 0)
    assert time.monotonic() - started < 30
    time.sleep(3)
    assert not (tmp_path / "late").exists()


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    command = assistant(tmp_path, "import sys; sys.exit('no key was given')")
    done = evals("run", "--cmd", command, "--only", "log-evidence")
    assert done.exit_code == 1
    assert "failed: no key was given" in done.stdout
    assert f"{NAME}, with the skill: 0% of the expectations" in done.stdout


def test_repeated_answers_are_averaged(tmp_path: Path) -> None:
    program = (
        "import pathlib\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "n = len(count.read_text()) if count.exists() else 0\n"
        "count.write_text('x' * (n + 1))\n"
        "print('all_gather with Transformer Engine attention' if n else 'no idea')\n"
    )
    command = assistant(tmp_path, program)
    done = evals(
        "run", "--cmd", command, "--only", "local-attention-on-dev", "--repeat", "2", "--json", "-"
    )
    data = json.loads(done.stdout)
    assert [row["score"] for row in data["answers"]] == [0, 1]
    assert data["means"] == [{"skill": NAME, "arm": "with", "score": 0.5}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cmd", ""), "names no program"),
        (("--cmd", "'open"), "cannot be split"),
        (("--cmd", "no-such-program-here"), "cannot be started"),
        (("--cmd", "true", "--only", "nothing"), "is not a case"),
        (("--cmd", "true", "--skill", "nothing"), "no such skill"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], said: str) -> None:
    done = evals("run", *words)
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


def scene(folder: Path, expectations: str, files: str = "[]") -> tuple[Path, Path]:
    (folder / "skills" / "demo" / "evals").mkdir(parents=True)
    (folder / "cards" / "demo").mkdir(parents=True)
    (folder / "skills" / "demo" / "evals" / "evals.json").write_text(
        '{"skill_name": "demo", "evals": [{"id": "one", "prompt": "p", "expected_output": "e",'
        f' "assertions": ["a", "b"], "files": {files}}}]}}'
    )
    (folder / "cards" / "demo" / "expectations.yaml").write_text(expectations)
    return folder / "skills" / "demo", folder / "cards" / "demo" / "card.yaml"


@pytest.mark.parametrize(
    ("expectations", "files", "said"),
    [
        ("one: [{says: x}]", "[]", "has 2 assertions and 1 expectations"),
        ("one: [{lacks: x}, {lacks: y}]", "[]", "silence would do"),
        ("one: [{says: '['}, {says: y}]", "[]", "is not a regular expression"),
        ("one: [{say: x}, {says: y}]", "[]", "has another form"),
        ("{one: [{says: x}, {says: y}], two: [{says: z}]}", "[]", "is not the id of a case"),
        ("one: [{says: x}, {says: y}]", '["../../../secret"]', "outside"),
        ("one: [{says: x}, {says: y}]", '["none"]', "cannot be read"),
    ],
)
def test_wrong_expectations_are_refused(
    tmp_path: Path, expectations: str, files: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        load_cases(*scene(tmp_path, expectations, files))


def test_what_must_not_be_said_costs_its_expectation(tmp_path: Path) -> None:
    skill, card = scene(tmp_path, "one: [{says: good}, {lacks: [bad, worse]}]")
    (case,) = load_cases(skill, card)
    assert judged(case, "GOOD") == (True, True)
    assert judged(case, "good, and not worse") == (True, False)
    assert judged(case, "neither") == (False, False), "silence is no merit"
