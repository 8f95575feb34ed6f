"""Checkouts given to ``ringproof prove`` reach the tests; without one the verdict names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checks.anchors.gitrepo import commit, make_repository
from checks.proofs.miniature import Miniature, claim, miniature
from ringproof.errors import InputError
from ringproof.harness.upstreams.sources import absolute_spec

TESTS = """
import pathlib
import pytest
from ringproof.harness.cards import load_card
from ringproof.harness.proofs.anchoring import UPSTREAM_OPTION, given_tree, unpack
from ringproof.harness.upstreams.tree import UpstreamUnavailable

CARD = load_card(pathlib.Path("skills/demo/card.yaml"))

@pytest.fixture
def tree(request):
    try:
        return given_tree(request.config.getoption(UPSTREAM_OPTION), CARD, "lm")
    except UpstreamUnavailable as error:
        pytest.skip(str(error))

def test_runs_upstream(tree, tmp_path):
    unpack(tree, "pkg/", tmp_path)
    assert (tmp_path / "pkg" / "mod.py").read_text() == "answer = 42\\n"
    assert not (tmp_path / "other.py").exists()

def test_needs_nothing():
    pass
"""


@pytest.fixture
def demo(tmp_path: Path) -> Miniature:
    made = miniature(tmp_path / "repo")
    made.file("checks/test_demo.py", TESTS)
    claims = [
        claim("upstream", "checks/test_demo.py::test_runs_upstream"),
        claim("both", "checks/test_demo.py"),
    ]
    files = {"pkg/mod.py": "answer = 42\n", "other.py": ""}
    found = commit(make_repository(made.root / "lm"), files)
    upstream = {"repo": "NVIDIA/Megatron-LM", "ref": "main", "commit": found}
    made.card(upstreams={"lm": upstream}, claims=claims)
    return made


def test_without_a_checkout_the_verdict_says_which(demo: Miniature) -> None:
    code, claims, _ = demo.verdicts()
    assert code == 0
    assert claims["upstream"]["verdict"] == "not-here"
    assert claims["upstream"]["reason"].startswith("needs a checkout of NVIDIA/Megatron-LM at ")
    assert claims["both"]["verdict"] == "partly"


@pytest.mark.parametrize("name", ["NVIDIA/Megatron-LM", "lm"])
def test_a_checkout_reaches_the_tests(demo: Miniature, name: str) -> None:
    """Its path is relative to where the command runs."""
    code, claims, _ = demo.verdicts("--upstream", f"{name}=git:lm")
    assert code == 0
    assert {item["verdict"] for item in claims.values()} == {"proven"}


def test_a_checkout_at_another_commit_is_no_proof(demo: Miniature) -> None:
    other = commit(make_repository(demo.root / "fork"), {"pkg/mod.py": "answer = 41\n"})
    code, claims, _ = demo.verdicts("--upstream", f"lm=git:fork@{other}")
    assert code == 1
    assert {item["verdict"] for item in claims.values()} == {"refuted"}
    assert "and the card speaks of" in claims["upstream"]["reason"]


def test_relative_places_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lm").mkdir()
    monkeypatch.chdir(tmp_path)
    here = os.path.realpath(tmp_path)
    assert absolute_spec("git:lm") == f"git:{here}/lm"
    assert absolute_spec("git:lm@main") == f"git:{here}/lm@main"
    assert absolute_spec("dir:lm") == f"dir:{here}/lm"
    assert absolute_spec("installed:torch") == "installed:torch"
    with pytest.raises(InputError, match="no such folder"):
        absolute_spec("git:missing")
