"""A damaged repository of the cache is named by whoever reads it, and fetched again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest
from rich.console import Console

from checks.running import contents
from checks.upstream.fetching import NAME, Demo, counted_git, demo
from ringproof.upstream.wanted import Provision, Wanted, WantedCommit


@pytest.fixture
def made(tmp_path: Path) -> Demo:
    made = demo(tmp_path)
    done = made.run("upstream", "fetch")
    assert done.returncode == 0, done.stderr
    assert list(made.bare.glob("objects/pack/*.idx")), "otherwise this test sees nothing"
    return made


def _change(*patterns: str, how: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(bare: Path) -> None:
        files = [path for pattern in patterns for path in bare.glob(pattern)]
        assert files
        for path in files:
            path.chmod(0o644)
            how(path)

    return change


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(bare: Path) -> None:
    shutil.move(bare, bare.with_name("elsewhere"))
    bare.symlink_to("elsewhere")
    (bare / "HEAD").write_text("ref: refs/heads/mine\n")


PACK, INDEX = "objects/pack/*.pack", "objects/pack/*.idx"
BROKEN = {
    "pack": _change(PACK, how=lambda path: os.truncate(path, path.stat().st_size // 2)),
    "index": _change(INDEX, how=lambda path: path.write_bytes(b"")),
    "no index": _change(INDEX, how=Path.unlink),
    "no objects": _change(PACK, INDEX, how=Path.unlink),
    "head": _change("HEAD", how=lambda path: path.write_text("x")),
    "pipe": _change("HEAD", how=_pipe),
    "shallow": _change("shallow", how=lambda path: path.write_text("x\n")),
    "config": _change("config", how=lambda path: path.write_text("[x\n")),
}
"""Damage without which nothing can be read."""
UNSEEN = {
    "bit of the pack": _change(PACK, how=_flip),
    "bit of the index": _change(INDEX, how=_flip),
    "link": _link,
    "leftover": lambda bare: (bare / "objects/pack/tmp_pack_x").write_text("x"),
}
"""Damage that not every reader meets."""


FAST = ("index", "link")
REPAIRED = ("leftover", "head", "config")
"""What is put right without fetching."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow)
        for kind in (*BROKEN, *UNSEEN)
    ],
)
def test_damage_is_named_and_mended(made: Demo, kind: str) -> None:
    {**BROKEN, **UNSEEN}[kind](made.bare)
    read = made.run("anchors", "check", "--offline")
    if kind in BROKEN:
        assert read.returncode == 2 and read.stderr.count("\n") == 1, read.stderr
        assert "run `ringproof upstream fetch`" in read.stderr
    elsewhere = made.bare.with_name("elsewhere")
    before = contents(elsewhere)
    done = made.run("upstream", "fetch")
    assert done.returncode == 0, done.stderr
    assert made.run("anchors", "check", "--offline").returncode == 0
    assert ("was damaged and is fetched again" in done.stdout) == (kind not in REPAIRED)
    assert not list(made.bare.rglob("tmp_pack*"))
    assert made.bare.is_dir() and not made.bare.is_symlink()
    assert contents(elsewhere) == before
    again = made.run("upstream", "fetch")
    assert again.returncode == 0 and "damaged" not in again.stdout


@pytest.mark.parametrize("content", [b"", b"\xff", b"../x\n"])
def test_a_name_that_leads_to_no_commit_is_not_here(made: Demo, content: bytes) -> None:
    name = made.bare / "refs" / "ringproof" / "names" / "main"
    assert name.is_file()
    name.write_bytes(content)
    done = made.run("stack", "--upstream", f"fetched:{NAME}@main")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "is not in the cache; run `ringproof upstream list`" in done.stderr


@pytest.mark.parametrize("ended", ["rev-parse", "ls-tree", "cat-file"])
def test_a_git_that_a_signal_ended_is_not_taken_for_damage(
    made: Demo, ended: str, tmp_path: Path
) -> None:
    git = tmp_path / "git"
    git.write_text(f'#!/bin/sh\ncase "$*" in *{ended}*) kill -9 $$;; esac\n{which("git")} "$@"\n')
    git.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = "the git program was ended by signal SIGKILL; run the command again\n"
    done = made.run("anchors", "check", "--offline", PATH=path)
    assert (done.returncode, done.stderr) == (2, f"error: git: {said}")
    done = made.run("upstream", "fetch", PATH=path)  # reads no file, and names commits by refs
    assert done.returncode == 0 or done.stderr.endswith(said)
    assert "damaged" not in done.stdout


def test_a_git_that_crashes_is_taken_for_damage(made: Demo, tmp_path: Path) -> None:
    """Git gets SIGBUS where a pack that it has mapped is shorter than before."""
    git = tmp_path / "git"
    crash = 'case "$*" in *cat-file*) echo "fatal: one" >&2; echo two >&2; kill -BUS $$;; esac'
    git.write_text(f'#!/bin/sh\n{crash}\n{which("git")} "$@"\n')
    git.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = made.run("anchors", "check", "--offline", PATH=path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "is damaged or incomplete (fatal: one)" in done.stderr


def test_what_is_damaged_stays_while_its_server_is_away(made: Demo) -> None:
    BROKEN["index"](made.bare)
    before = contents(made.bare)
    assert made.run("upstream", "fetch", url="file:///nowhere").returncode == 2
    assert contents(made.bare).keys() == before.keys()


def test_commits_that_are_not_asked_for_come_back_too(
    made: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a branch's newest commit; and where the fetch breaks off, all stays as it was."""
    assert made.run("upstream", "fetch", "--branches").returncode == 0
    refs = {path: data for path, data in contents(made.bare).items() if path.startswith("refs/")}
    BROKEN["index"](made.bare)
    one = Wanted((WantedCommit(NAME, made.old, "main"),), ())
    said: list[str] = []
    bring = Provision(made.cache, Console(quiet=True), said.append, {NAME: made.server.as_uri()})
    before = contents(made.bare)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", counted_git(tmp_path / "git", then="exit 1", at=1)["PATH"])
    assert bring.bring(one)
    assert contents(made.bare).keys() == before.keys()
    monkeypatch.setenv("PATH", path)
    assert not bring.bring(one)
    after = {path: data for path, data in contents(made.bare).items() if path.startswith("refs/")}
    assert refs.items() <= after.items()
    assert made.run("anchors", "check", "--offline").returncode == 0
    assert [entry.name for entry in made.bare.parent.iterdir()] == [made.bare.name]


def test_what_a_killed_run_left_aside_is_put_back(made: Demo) -> None:
    BROKEN["index"](made.bare)
    made.bare.rename(made.bare.with_name(f"{made.bare.name}.damaged"))
    (made.bare / "objects").mkdir(parents=True)
    one = Wanted((WantedCommit(NAME, made.old, "main"),), ())
    bring = Provision(made.cache, Console(quiet=True), print, {NAME: made.server.as_uri()})
    assert not bring.bring(one)
    assert made.here() == sorted([made.old[:12], made.new[:12]])
    assert [entry.name for entry in made.bare.parent.iterdir()] == [made.bare.name]
