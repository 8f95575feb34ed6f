"""Bad input to ``ringproof prove``: one line, exit code 2, and nothing was run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from checks.cards.hostile import BOMB
from checks.prove.miniature import Miniature, anchor, claim, miniature
from ringproof.files import claimed

ESCAPING = claim("a", "checks/../../t.py::test_x")


def _linked_test(repository: Miniature) -> None:
    outside = repository.file("../outside/test_x.py", "def test_x(): pass\n")
    (repository.root / "checks").mkdir()
    (repository.root / "checks/test_x.py").symlink_to(outside)
    repository.card(claims=[claim("a", "checks/test_x.py::test_x")])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda made: made.card(claims={"a": 1}), "claims"),
        (lambda made: made.card().write_text(BOMB), "aliases"),
        (lambda made: made.card().unlink(), "has no card"),
        (lambda made: made.card(claims=[ESCAPING]), "leaves the repository"),
        (_linked_test, "outside the repository"),
    ],
    ids=["wrong-type", "yaml-bomb", "no-card", "escaping-node", "linked-test"],
)
def test_a_broken_card(tmp_path: Path, spoil: Callable[[Miniature], object], words: str) -> None:
    repository = miniature(tmp_path / "repository")
    spoil(repository)
    done = repository.prove()
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert not (repository.root / "build").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["unknown"], "choose from: demo"),
        (["../demo"], "choose from: demo"),
        (["--skills", "nowhere"], "no such folder"),
        (["--quick", "--record", "evidence"], "--record"),
        (["--refute", "--quick"], "--refute does not know --quick"),
        (["--refute", "--resume"], "--refute does not know --resume"),
        (["--refute", "--require-all"], "--refute does not know --require-all"),
        (["--refute", "--html", "x.html"], "--refute does not know --html"),
        (["--out", "skills/demo/SKILL.md"], "--out"),
        (["--timeout", "0"], "--timeout"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: list[str], words: str) -> None:
    repository = miniature(tmp_path)
    repository.card(claims=[claim("a", "unproven: x")])
    done = repository.prove(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_run_in_one_folder(tmp_path: Path) -> None:
    repository = miniature(tmp_path)
    repository.card(anchors=[anchor("here")], claims=[claim("a", "anchor:here")])
    out = repository.root / "build/prove"
    out.mkdir(parents=True)
    with claimed(out, field="--out"):
        done = repository.prove()
    said = "error: --out: another run writes into 'build/prove'; wait for it, or name another"
    assert (done.returncode, done.stderr) == (2, f"{said} folder\n") and not list(out.iterdir())
    assert repository.prove().returncode == 0


def test_the_same_card_unspoiled_is_accepted(tmp_path: Path) -> None:
    """The negative control: it is the spoiling that is refused."""
    repository = miniature(tmp_path)
    repository.card(anchors=[anchor("here")], claims=[claim("a", "anchor:here")])
    assert repository.prove().returncode == 0
