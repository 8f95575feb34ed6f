"""``action.yml``, its steps executed as the runner executes them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from checks.action.installed import ROOT, copy_of_ringproof, offline_environment
from checks.action.runner import Action, evaluate, obeyed
from checks.fences.trees import CODE, checkout, fence
from checks.findings.sarif_structure import sarif_problems
from checks.prove.miniature import anchor, claim, miniature
from checks.running import schema_problems

pytestmark = pytest.mark.slow  # installs the package anew

SKILL = "---\nname: {name}\ndescription: Use this skill when a test needs {name}.\n---\n"
BODY = "class Config:\n    size: int = 1"


@pytest.fixture(scope="module")
def action(tmp_path_factory: pytest.TempPathFactory) -> Action:
    """The action, its first step done."""
    place = tmp_path_factory.mktemp("action")
    temporary = place / "runner temp"
    temporary.mkdir()
    environment = offline_environment(place / "home")
    made = Action(copy_of_ringproof(place / "ringproof"), temporary, environment)
    done = made.run(place, only="Install", python=sys.executable)
    assert done.code == 0, done.stderr
    return made


def skill(root: Path, body: str = "", name: str = "one") -> Path:
    checkout(root, {f"skills/{name}/SKILL.md": SKILL.format(name=name) + body})
    return root


def test_the_defaults_lint_the_folder_skills(action: Action, tmp_path: Path) -> None:
    good = action.run(skill(tmp_path / "good"), only="Run")
    assert (good.code, obeyed(good.stdout), good.outputs) == (0, [], {"sarif": ""})
    assert "1 skills, 1 files: 0 errors" in good.stdout
    bad = action.run(skill(tmp_path / "bad", "[x](none.md)\n"), only="Run")
    assert bad.code == 1
    assert bad.stdout.startswith("::error file=skills/one/SKILL.md,line=5,title=RP201::")
    nothing = action.run(tmp_path, only="Run", paths="good/skills/none")
    assert (nothing.code, obeyed(nothing.stdout)) == (2, [])
    assert "\nerror: PATH: 'good/skills/none' does not exist" in nothing.stdout


def test_all_steps_in_order_install_and_run(action: Action, tmp_path: Path) -> None:
    again = Action(action.folder, action.temporary, action.environment)
    done = again.run(skill(tmp_path, "[x](none.md)\n"), python=sys.executable, format="text")
    assert done.code == 1
    assert "skills/one/SKILL.md:5: RP201" in done.stdout


@pytest.mark.parametrize("odd", ["a b;touch forged", "$(touch forged)'", '-n"`touch forged`'])
def test_no_input_becomes_a_command(action: Action, tmp_path: Path, odd: str) -> None:
    checkout(tmp_path, {f"{odd}/one/SKILL.md": SKILL.format(name="one") + "[x](none.md)\n"})
    done = action.run(tmp_path, only="Run", paths=f"{odd}\n", sarif=f"{odd}.sarif")
    assert done.code == 1, done.stderr
    assert done.stdout.startswith("::error file=")
    assert done.outputs["sarif"] == f"{odd}.sarif"
    log = json.loads((tmp_path / f"{odd}.sarif").read_text())
    assert sarif_problems(log) == []
    spoiled = dict.fromkeys(("upstreams", "arguments", "format", "sarif", "extras"), f"x={odd}")
    for command in ("anchors", odd):
        assert action.run(tmp_path, only="Run", paths=odd, command=command, **spoiled).code == 2
    assert not list(tmp_path.rglob("forged"))


def test_several_paths_stand_on_lines_of_their_own(action: Action, tmp_path: Path) -> None:
    skill(tmp_path / "a b", "[x](none.md)\n")
    skill(tmp_path / "c", "[x](none.md)\n", name="two")
    done = action.run(tmp_path, only="Run", paths="a b\r\n\nc\n".replace("\r", ""))
    assert len(obeyed(done.stdout)) == 2
    refused = action.run(tmp_path, only="Run", paths="a b\nc", command="fences")
    assert (refused.code, refused.stdout) == (2, "::error title=ringproof::fences takes one path\n")


def test_anchors_with_upstreams_and_sarif(action: Action, tmp_path: Path) -> None:
    repository = miniature(tmp_path)
    repository.card(anchors=[anchor("a-build")])
    given = {"command": "anchors", "arguments": "--offline\n--cache=.cache\n"}
    good = action.run(tmp_path, only="Run", sarif="out.sarif", **given)
    assert (good.code, good.outputs) == (0, {"sarif": "out.sarif"})
    repository.card(anchors=[anchor("a-build", "nowhere")])
    bad = action.run(tmp_path, only="Run", sarif="out.sarif", **given)
    assert bad.code == 1
    assert "::error file=skills/demo/card.yaml,line=" in bad.stdout and "RA101" in bad.stdout
    results = json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"]
    assert "RA101" in [item["ruleId"] for item in results]
    # What an earlier run wrote is not this run's.
    refused = action.run(
        tmp_path, only="Run", sarif="out.sarif", upstreams="demo=git:nowhere@main", **given
    )
    assert (refused.code, refused.outputs) == (2, {"sarif": ""})
    assert "is not a folder" in refused.stdout
    given["arguments"] += "--upstream=demo=dir:."
    assert action.run(tmp_path, only="Run", **given).code == 1


def test_fences_and_their_roots(action: Action, tmp_path: Path) -> None:
    text = SKILL.format(name="one") + fence(3, 4, "lib/a.py", BODY)
    checkout(tmp_path, {"skills/one/SKILL.md": text, "elsewhere/a.py": CODE})
    without = action.run(tmp_path, only="Run", command="fences")
    assert without.code == 1 and "title=RF203" in without.stdout
    assert action.run(
        tmp_path, only="Run", command="fences", upstreams="lib=dir:elsewhere"
    ).code == 0  # fmt: skip


def test_generated_blocks_and_proofs(action: Action, tmp_path: Path) -> None:
    repository = miniature(tmp_path)
    repository.card(anchors=[anchor("a-build")], claims=[claim("says", "anchor:a-build")])
    repository.file(
        "skills/demo/SKILL.md", "<!-- ringproof:begin claims -->\n<!-- ringproof:end -->\n"
    )
    stale = action.run(tmp_path, only="Run", command="render")
    assert stale.code == 1, stale.stderr
    program = str(action.temporary / "ringproof" / "bin" / "ringproof")
    subprocess.run([program, "render"], cwd=tmp_path, env=dict(action.environment), check=True)
    assert action.run(tmp_path, only="Run", command="render").code == 0
    for name in ("sarif", "upstreams"):
        refused = action.run(tmp_path, only="Run", command="render", **{name: "x"})
        assert refused.code == 2 and refused.stdout.startswith("::error title=ringproof::")
    given = {"command": "prove", "arguments": "--offline\n--cache=.cache"}
    proven = action.run(tmp_path, only="Run", **given)
    assert proven.code == 0, proven.stdout + proven.stderr
    repository.card(claims=[claim("says", "anchor:a-build")], anchors=[anchor("a-build", "none")])
    assert action.run(tmp_path, only="Run", **given).code == 1


def test_an_old_python_is_refused_in_words(action: Action, tmp_path: Path) -> None:
    old = tmp_path / "old python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = action.run(tmp_path, python=str(old))
    assert done.code == 2 and "Python 3.10 or later is needed" in done.stdout


def test_the_runner_understands_only_what_it_knows() -> None:
    assert evaluate("a ${{ inputs.x }}", {"inputs.x": "b"}) == "a b"
    for text in ("${{ github.token }}", "${{ inputs.x || 'y' }}", "${{ inputs.none }}"):
        with pytest.raises(KeyError):
            evaluate(text, {"inputs.x": "b"}, missing="")


def test_action_and_workflows_obey_github_s_schemas(tmp_path: Path) -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    assert schema_problems("github-actions", ROOT / "action.yml") == ""
    assert schema_problems("github-workflows", *workflows) == ""
    wrong = tmp_path / "action.yml"
    wrong.write_text((ROOT / "action.yml").read_text().replace("using: composite", "using: bash"))
    assert "bash" in schema_problems("github-actions", wrong)


def test_workflows_call_what_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    texts.append((ROOT / ".ci" / "run").read_text())
    called = set(re.findall(r"\bmake ([a-z-]+)", "\n".join(texts)))
    assert {"upstreams", "wheels", "prove"} <= called <= targets


def test_ci_runs_the_readme_s_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "run: bash .ci/run" in workflow and "uses: ./" in workflow
    for command in ("make test", "make prove QUICK=1"):
        assert f"\n{command}\n" in script and command in readme
