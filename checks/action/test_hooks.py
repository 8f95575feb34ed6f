"""``.pre-commit-hooks.yaml``: the hooks parse, match files, and are run by pre-commit."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from pre_commit.clientlib import load_manifest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from checks.action.installed import ROOT, copy_of_ringproof, offline_environment
from checks.fences.trees import CODE, checkout, fence
from checks.prove.miniature import Miniature, anchor, claim, miniature
from checks.running import ran, run_here
from ringproof.cli.main import app
from ringproof.errors import InputError

MANIFEST = ROOT / ".pre-commit-hooks.yaml"
IDS = ("ringproof-lint", "ringproof-anchors", "ringproof-fences", "ringproof-render")
SKILL = "---\nname: demo\ndescription: Use this skill when a test needs a demonstration.\n---\n"
BLOCK = "<!-- ringproof:begin claims -->\n<!-- ringproof:end -->\n"
GOOD = SKILL + fence(3, 4, "src/a.py", "class Config:\n    size: int = 1") + BLOCK
COMMITTED = {
    "ringproof-lint": "skills/one/SKILL.md",
    "ringproof-anchors": "skills/one/card.yaml",
    "ringproof-fences": "src/anything.py",
    "ringproof-render": "skills/one/references/a.md",
}


def hooks() -> dict[str, Any]:
    return {hook["id"]: hook for hook in load_manifest(str(MANIFEST))}


def test_the_manifest_is_pre_commit_s() -> None:
    found = hooks()
    assert tuple(found) == IDS
    for hook in found.values():
        assert (hook["language"], hook["pass_filenames"]) == ("python", False)


@pytest.mark.parametrize("name", IDS)
def test_the_commands_and_options_exist(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hook = hooks()[name]
    program, *words = shlex.split(hook["entry"])
    assert program == "ringproof"
    result = CliRunner().invoke(app, [*words, *hook["args"]])
    # Everything parses; then there is no such folder here, and no pass on nothing.
    assert isinstance(result.exception, InputError), result.output
    unknown = CliRunner().invoke(app, [*words, *hook["args"], "--no-such-option"])
    assert unknown.exit_code == 2 and not isinstance(unknown.exception, InputError)
    assert "No such option" in unknown.output


@pytest.mark.parametrize("name", IDS)
def test_a_hook_runs_when_its_files_change(name: str) -> None:
    hook = hooks()[name]
    matches = hook["always_run"] or re.search(hook["files"], COMMITTED[name]) is not None
    assert matches
    assert hook["always_run"] or re.search(hook["files"], "src/main.py") is None


def _git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org")
    return ran("git", *identity, *words, cwd=folder, check=True).stdout.strip()


def _committed(folder: Path) -> str:
    _git(folder, "init", "--quiet")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--no-verify", "--message", "all")
    return _git(folder, "rev-parse", "HEAD")


def _scene(root: Path) -> Miniature:
    """A repository in which every hook has something to look at and nothing to say."""
    made = miniature(root)
    made.card(anchors=[anchor("a-build")], claims=[claim("says", "anchor:a-build")])
    checkout(root, {"src/a.py": CODE, "skills/demo/SKILL.md": GOOD})
    rendered = run_here(root, ["render"])
    assert rendered.returncode == 0, rendered.stderr
    return made


def _break(made: Miniature) -> None:
    path = made.root / "skills/demo/SKILL.md"
    text = path.read_text().replace("says is so", "says is not so") + "[x](none.md)\n"
    made.card(anchors=[anchor("a-build", "nowhere")], claims=[claim("says", "anchor:a-build")])
    path.write_text(text.replace("3:4:src/a.py", "13:14:src/a.py"))


@pytest.mark.slow
def test_pre_commit_runs_them(tmp_path: Path) -> None:
    ringproof = copy_of_ringproof(tmp_path / "ringproof")
    made = _scene(tmp_path / "theirs")
    chosen: list[dict[str, Any]] = [{"id": name} for name in IDS]
    chosen[1]["args"] = ["--offline", "--cache=.cache"]
    repository = {"repo": str(ringproof), "rev": _committed(ringproof), "hooks": chosen}
    with (made.root / ".pre-commit-config.yaml").open("w") as stream:
        YAML(typ="safe", pure=True).dump({"repos": [repository]}, stream)
    _committed(made.root)
    environment = offline_environment(tmp_path / "home")
    environment["PRE_COMMIT_HOME"] = str(tmp_path / "home" / "pre-commit")

    def verdicts() -> tuple[int, dict[str, str], str]:
        words = ("-m", "pre_commit", "run", "--all-files", "--color=never")
        done = ran(sys.executable, *words, cwd=made.root, env=environment)
        names = {hook["name"]: name for name, hook in hooks().items()}
        lines = re.findall(r"^(.+?)\.{3,}(.+)$", done.stdout, re.M)
        found = {names[name]: verdict for name, verdict in lines if name in names}
        return done.returncode, found, done.stdout + done.stderr

    code, found, said = verdicts()
    assert (code, found) == (0, dict.fromkeys(IDS, "Passed")), said
    _break(made)
    code, found, said = verdicts()
    assert (code, found) == (1, dict.fromkeys(IDS, "Failed")), said
    for rule in ("RP201", "RA101", "RF201", "stale"):
        assert rule in said
