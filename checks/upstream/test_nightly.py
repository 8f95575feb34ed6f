"""The scripts of the nightly workflow: what they compare, and when they open or close an issue."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pygit2
import pytest

from checks.anchors.gitrepo import commit
from checks.running import ran
from checks.upstream.fetching import NAME, Demo, demo
from ringproof.cards import RepositoryUpstream, load_card

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
SAME = "def build(first):\n    pass\n"
CHANGED = "def build(third):\n    pass\n"

RINGPROOF = f"""#!/bin/sh
if [ "$1" = stack ]; then echo "stack of $2"; exit "${{STACK:-0}}"; fi
exec {sys.executable} -m ringproof "$@"
"""
GH = """#!/bin/sh
echo "$@" >> "$CALLS"
if [ "$2" = list ]; then echo "$OPEN"; fi
"""


def _program(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def _newest(made: Demo, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = _program(folder / "bin", "ringproof", RINGPROOF)
    out = str(folder / "out")
    words = (ROOT / ".ci" / "newest", NAME, "main", "old", out, "--cache", made.cache)
    environment = {**os.environ, "PATH": path, **environment}
    return ran(*words, cwd=made.repository.root, env=environment)


@pytest.mark.parametrize(
    ("code", "stack", "changed"),
    [(SAME, "0", "false"), (CHANGED, "0", "true"), (SAME, "1", "true")],
)
def test_what_changed_is_reported(tmp_path: Path, code: str, stack: str, changed: str) -> None:
    made = demo(tmp_path)
    newest = {"pkg/mod.py": code, "other.py": ""}
    commit(pygit2.Repository(str(made.server)), newest)
    assert made.run("upstream", "fetch", "--branches").returncode == 0
    done = _newest(made, tmp_path, STACK=stack)
    assert done.returncode == 0, done.stderr
    assert f"changed={changed}\n" in done.stdout
    report = (tmp_path / "out" / "report.md").read_text()
    assert made.old in report and f"stack of fetched:{NAME}@newest/main" in report
    results = json.loads((tmp_path / "out" / "drift.sarif").read_text())["runs"][0]["results"]
    assert bool(results) is (code == CHANGED)
    assert ("claim old" in report) is (code == CHANGED)


def test_what_was_not_fetched_is_a_failure_and_no_change(tmp_path: Path) -> None:
    made = demo(tmp_path)
    done = _newest(made, tmp_path)
    assert done.returncode == 2 and "is not in the cache" in done.stderr
    assert "changed=" not in done.stdout
    assert made.run("upstream", "fetch", "--branches").returncode == 0
    assert _newest(made, tmp_path, STACK="2").returncode == 2


@pytest.mark.parametrize(
    ("wanted", "number", "calls"),
    [
        ("true", "", ["list", "create"]),
        ("true", "7", ["list", "edit 7"]),
        ("false", "7", ["list", "close 7"]),
        ("false", "", ["list"]),
    ],
)
def test_one_issue_while_there_is_something_to_say(
    tmp_path: Path, wanted: str, number: str, calls: list[str]
) -> None:
    path = _program(tmp_path / "bin", "gh", GH)
    subprocess.run(
        [str(ROOT / ".ci" / "issue"), "It has moved on", wanted, "report.md"],
        env={**os.environ, "PATH": path, "CALLS": str(tmp_path / "calls"), "OPEN": number},
        check=True,
    )
    made = (tmp_path / "calls").read_text().splitlines()
    assert len(made) == len(calls)
    assert all(line.startswith(f"issue {call}") for line, call in zip(made, calls, strict=True))


def test_the_workflow_compares_upstreams_of_the_cards() -> None:
    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    asked = re.findall(r"repo: (\S+), branch: (\S+), upstream: ([\w.-]+)\}", text)
    assert len(asked) >= 4
    cards = [load_card(path) for path in (ROOT / "cards").glob("*/card.yaml")]
    known = {
        (upstream.repo, upstream.ref, name)
        for card in cards
        for name, upstream in card.upstreams.items()
        if isinstance(upstream, RepositoryUpstream)
    }
    assert [one for one in asked if one not in known] == []
