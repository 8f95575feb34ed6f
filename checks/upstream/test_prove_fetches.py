"""Upstream code that was fetched or given reaches anchors and tests; what lacks is named."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from checks.anchors.gitrepo import commit, make_repository
from checks.prove.miniature import anchor, claim
from checks.upstream.fetching import NAME, Demo, demo
from ringproof.errors import InputError
from ringproof.upstream.sources import absolute_spec

pytestmark = pytest.mark.slow

TESTS = """
import pathlib
import pytest
from ringproof.cards import load_card
from ringproof.prove.anchoring import CACHE_OPTION, UPSTREAM_OPTION, given_tree
from ringproof.upstream.tree import UpstreamUnavailable

CARD = load_card(pathlib.Path("skills/demo/card.yaml"))

def test_reads_upstream(request):
    assert request.config.getoption("--ringproof-offline")
    try:
        entries, cache = map(request.config.getoption, (UPSTREAM_OPTION, CACHE_OPTION))
        tree = given_tree(entries, CARD, "new", cache=cache)
    except UpstreamUnavailable as error:
        pytest.skip(str(error))
    assert b"second" in tree.read("pkg/mod.py")

def test_needs_nothing():
    pass

def test_needs_more():
    pytest.skip("needs --ringproof-upstream other/lm=git:PATH (for main)")

def test_gpu():
    pytest.skip("needs 2 GPUs")
"""
OLD = (claim("old", "anchor:a-old"),)
NEW = (claim("new", "anchor:a-new"), claim("read", "checks/test_demo.py::test_reads_upstream"))


def _claims(made: Demo, *claims: object, only_old: bool = False) -> None:
    """Write the card with these claims."""
    upstreams = {"old": {"repo": NAME, "ref": "main", "commit": made.old}}
    anchors = [anchor("a-old", "build", "first", upstream="old")]
    if not only_old:
        upstreams["new"] = {"repo": NAME, "ref": "new", "commit": made.new}
        anchors.append(anchor("a-new", "build", "second", upstream="new"))
    made.repository.card(upstreams=upstreams, anchors=anchors, claims=list(claims))


@pytest.fixture
def made(tmp_path: Path) -> Demo:
    found = demo(tmp_path)
    found.repository.file("checks/test_demo.py", TESTS)
    _claims(found, *OLD, *NEW)
    return found


def test_the_cache_reaches_anchors_and_tests(made: Demo) -> None:
    assert made.run("upstream", "fetch").returncode == 0
    code, claims, _ = made.repository.verdicts("--require-all")
    assert code == 0
    assert {item["verdict"] for item in claims.values()} == {"proven"}


@pytest.mark.parametrize("name", [NAME, "new"])
def test_a_checkout_reaches_the_tests(made: Demo, name: str) -> None:
    """Its path is relative to where the command runs."""
    _claims(made, *NEW)
    code, claims, _ = made.repository.verdicts("--upstream", f"{name}=git:../server")
    assert code == 0
    assert {claims[name]["verdict"] for name in ("new", "read")} == {"proven"}
    whole = made.repository.verdicts("--require-all", "--upstream", f"{NAME}=git:{made.server}")
    assert whole[0] == 0, "a checkout that was given is at hand"


def test_a_checkout_at_another_commit_is_no_proof(made: Demo) -> None:
    upstream = {"repo": NAME, "ref": "new", "commit": made.new}
    made.repository.card(upstreams={"new": upstream}, claims=[NEW[1]])
    other = commit(make_repository(made.server.parent / "fork"), {"pkg/mod.py": "second = 2\n"})
    code, claims, _ = made.repository.verdicts("--upstream", f"new=git:../fork@{other}")
    assert (code, claims["read"]["verdict"]) == (1, "refuted")
    assert "and the card names" in claims["read"]["reason"]


def test_without_a_checkout_the_verdict_and_one_line_say_which(made: Demo) -> None:
    _claims(made, claim("read", "checks/test_demo.py::test_reads_upstream"),
            claim("both", "checks/test_demo.py::test_reads_upstream",
                  "checks/test_demo.py::test_needs_nothing"))  # fmt: skip
    code, claims, _ = made.repository.verdicts()
    assert code == 0
    assert claims["read"]["verdict"] == "not-here"
    assert claims["read"]["reason"] == f"needs a checkout of {NAME} at {made.new[:12]}"
    assert claims["both"]["verdict"] == "partly"
    said = made.repository.prove().stderr.splitlines()
    (line,) = (line for line in said if line.startswith("not at hand: "))
    assert NAME in line and "not in the cache" in line


def test_all_is_required_only_when_asked(made: Demo) -> None:
    _claims(made, claim("other", "checks/test_demo.py::test_needs_nothing"), only_old=True)
    assert made.repository.prove().returncode == 0
    done = made.repository.prove("--require-all")
    assert done.returncode == 1
    assert f"not at hand: {NAME} main {made.old[:12]}" in done.stdout
    assert made.run("upstream", "fetch").returncode == 0
    assert made.repository.prove("--require-all").returncode == 0


def test_upstream_code_that_only_a_test_needs_is_required_too(made: Demo) -> None:
    gpu = claim("gpu", "checks/test_demo.py::test_gpu")
    _claims(made, *OLD, gpu, only_old=True)
    assert made.run("upstream", "fetch").returncode == 0
    assert made.repository.prove("--require-all").returncode == 0, "a GPU is not upstream code"
    other = claim("other", "checks/test_demo.py::test_needs_more")
    _claims(made, *OLD, gpu, other, only_old=True)
    assert made.repository.prove().returncode == 0
    done = made.repository.prove("--require-all")
    assert done.returncode == 1 and "1 proofs lack code: checks/test_demo.py" in done.stdout


def test_without_a_network_it_goes_on_at_once(made: Demo) -> None:
    """A proxy that refuses connections stands for a network that is not there."""
    environment = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:1")
    start = time.monotonic()
    done = made.run("prove", **environment)
    assert time.monotonic() - start < 30
    said = [line for line in done.stderr.splitlines() if line.startswith("not at hand: ")]
    assert len(said) == 1 and "cannot be reached" in said[0], done.stderr


def test_relative_places_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lm").mkdir()
    monkeypatch.chdir(tmp_path)
    here = os.path.realpath(tmp_path)
    assert absolute_spec("git:lm") == f"git:{here}/lm"
    assert absolute_spec("git:lm@main") == f"git:{here}/lm@main"
    assert absolute_spec("dir:lm") == f"dir:{here}/lm"
    assert absolute_spec("installed:torch") == "installed:torch"
    with pytest.raises(InputError, match="is not a folder"):
        absolute_spec("git:missing")
