"""Bad input to ``lint`` and ``anchors``: one line on standard error, exit code 2, in any format."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.anchors.gitrepo import commit, make_repository
from checks.anchors.scene import Scene
from checks.cards.hostile import BOMB
from checks.fences.trees import checkout
from checks.prove.miniature import anchor
from smoke.processes import called

FORMATS = ("text", "json", "sarif", "github")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *words: called(capsys, monkeypatch, *map(str, words))


def commands(scene: Scene) -> list[tuple[str, ...]]:
    """Every command that reads a card, in every format it has."""
    place = ("--cache", ".cache", "--offline")
    ends = ("--from", scene.git("main"), "--to", scene.git("later"))
    found = [("anchors", "lock", *place)]
    for shown in FORMATS:
        found.append(("anchors", "check", *place, "--format", shown))
        found.append(("anchors", "drift", *ends, *place, "--format", shown))
    return found


def refused(run: Run, words: tuple[str, ...]) -> str:
    code, out, err = run(*words)
    assert (code, out) == (2, ""), (words, out, err)
    assert err.startswith("error: ") and err.count("\n") == 1 and len(err) < 1500, err
    assert "Traceback" not in err
    return err


def card(scene: Scene) -> Path:
    return scene.skill.root / "skills" / "demo" / "card.yaml"


# What a card may hold is tested with the cards; here, that each command refuses it in one line.
CARDS: dict[str, tuple[str | dict[str, Any], str]] = {
    "bomb": (BOMB, "card.yaml:1: YAML anchors and aliases are refused"),
    "huge": ("# " + "x" * 50_000_000, "the file cannot be read (larger than 1,000,000 bytes)"),
    "syntax": ("title: 'x\n", "not valid YAML"),
    "ids": ({"anchors": [anchor("a"), anchor("a")]}, "is already the id of"),
    "escape": ({"anchors": [{**anchor("a"), "path": "../../etc/passwd"}]}, "anchors[0].path"),
    "terminal": ({"anchors": [{**anchor("a"), "symbol": "\x1b[2J"}]}, "U+001B"),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_that_cannot_be_used(scene: Scene, run: Run, name: str) -> None:
    content, problem = CARDS[name]
    if isinstance(content, str):
        card(scene).write_text(content)
    else:
        scene.skill.card(**content)
    for words in commands(scene):
        said = refused(run, words)
        assert problem in said and "card.yaml:" in said


def test_a_card_that_is_no_file_of_this_folder(scene: Scene, run: Run, tmp_path: Path) -> None:
    path = card(scene)
    outside = tmp_path / "elsewhere.yaml"
    path.rename(outside)
    assert "has no card" in refused(run, commands(scene)[1])
    path.symlink_to(outside)
    assert "lies outside" in refused(run, commands(scene)[1])
    path.unlink()
    path.mkdir()
    assert "not a regular file" in refused(run, commands(scene)[1])
    path.rmdir()
    os.mkfifo(path)
    assert "not a regular file" in refused(run, commands(scene)[1])


def test_a_symbol_that_is_there_twice(scene: Scene, run: Run) -> None:
    twice = commit(
        make_repository(scene.repository.parent / "twice"),
        {"pkg/mod.py": "def build(): pass\ndef build(): pass\n"},
    )
    scene.skill.card(
        upstreams={"lm": {"repo": "some/where", "ref": "main", "commit": twice}},
        anchors=[anchor("a", upstream="lm")],
    )
    given = ("--upstream", f"lm=git:{scene.repository.parent / 'twice'}")
    for shown in FORMATS:
        code, out, err = run("anchors", "check", *given, "--format", shown)
        assert code == 2 and err.splitlines()[-1].startswith("error: skills/demo/card.yaml:")
        assert "RA106" in out or "ambiguous symbol" in out
    code, _, err = run("anchors", "lock", *given)
    assert code == 2 and "card.yaml:" in err and not scene.lock.exists()


UPSTREAMS = {
    "git:{git}@nope": "no ref 'nope'",
    "git:{git}@../x": "is not a branch",
    "git:{root}/none@main": "is not a folder",
    "git:{root}@main": "is not a readable git repository",
    "git:{root}/corrupt@main": "git",
    "pip:demo-upstream==99": "not in the cache",
    "pip:demo-upstream": "names no exact release",
    "dir:{root}/none": "none",
    "installed:no-such-package-here": "no-such-package-here",
    "ftp:x": "is not an upstream",
    "": "is not NAME=SPEC",
}


@pytest.mark.parametrize("spec", UPSTREAMS)
def test_an_upstream_that_cannot_be_had(scene: Scene, run: Run, spec: str) -> None:
    root = scene.skill.root
    shutil.copytree(scene.repository, root / "corrupt")
    for stored in (root / "corrupt" / "objects").rglob("*"):
        if stored.is_file():
            stored.chmod(0o644)
            stored.write_bytes(b"garbage")
    given = spec.format(git=scene.repository, root=root)
    place = ("--cache", ".cache", "--offline")
    checkout(root, {"skills/demo/SKILL.md": "`x/a.py:3`\n"})
    lines = [refused(run, ("anchors", "lock", *place, "--upstream", f"lm={given}"))]
    for shown in FORMATS:
        how = (*place, "--format", shown)
        lines.append(refused(run, ("anchors", "check", "--upstream", f"lm={given}", *how)))
        if given:
            ends = ("--from", scene.git("main"), "--to", given)
            lines.append(refused(run, ("anchors", "drift", *ends, *how)))
        fences = ("skills", "--upstream", f"x={given}")
        lines.append(refused(run, ("fences", *fences, *how)))
    assert all(UPSTREAMS[spec] in line for line in lines), lines


def test_no_network(scene: Scene, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_TIMEOUT", "1")
    scene.skill.card(anchors=[anchor("a")])
    empty = ("--cache", str(scene.skill.root / "empty"))
    for words in (("anchors", "check"), ("anchors", "lock")):
        assert "demo-upstream" in refused(run, (*words, *empty))


@pytest.mark.parametrize("shown", FORMATS)
def test_lint_and_fences_of_what_is_no_skill(scene: Scene, run: Run, shown: str) -> None:
    checkout(scene.skill.root, {"empty/a.md": "x", "empty/b.txt": "x"})
    for path in ("empty", "none", "empty/b.txt", "\x1b[2J", "a" * 5000):
        lint = refused(run, ("lint", path, "--format", shown))
        assert "PATH: " in lint and "\x1b" not in lint
        skills = refused(run, ("anchors", "check", "--skills", path, "--format", shown))
        assert "--skills: " in skills and "\x1b" not in skills
        if path != "empty/b.txt":
            fences = refused(run, ("fences", path, "--format", shown))
            assert "PATH: " in fences and "\x1b" not in fences
