"""A repository in miniature whose card names two commits on a git server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from checks.proofs.miniature import anchor, claim
from checks.upstreams.fetching import NAME, Demo, demo

TESTS = """
import pathlib
import pytest
from ringproof.harness.cards import load_card
from ringproof.harness.proofs.anchoring import (
    CACHE_OPTION,
    OFFLINE_OPTION,
    UPSTREAM_OPTION,
    given_tree,
)
from ringproof.harness.upstreams.tree import UpstreamUnavailable

CARD = load_card(pathlib.Path("skills/demo/card.yaml"))

def test_reads_upstream(request):
    assert request.config.getoption(OFFLINE_OPTION)
    try:
        entries, cache = map(request.config.getoption, (UPSTREAM_OPTION, CACHE_OPTION))
        tree = given_tree(entries, CARD, "new", cache=cache)
    except UpstreamUnavailable as error:
        pytest.skip(str(error))
    assert b"second" in tree.read("pkg/mod.py")
"""


@pytest.fixture
def made(tmp_path: Path) -> Demo:
    found = demo(tmp_path)
    found.repository.file("checks/test_demo.py", TESTS)
    card = found.repository.root / "skills" / "demo" / "card.yaml"
    card.write_text(
        card.read_text().replace("[anchor:a-new]", "[anchor:a-new, 'checks/test_demo.py']")
    )
    return found


def test_the_cache_reaches_anchors_and_tests(made: Demo) -> None:
    assert made.run("upstream", "fetch").returncode == 0
    code, claims, _ = made.repository.verdicts("--require-all")
    assert code == 0
    assert {item["verdict"] for item in claims.values()} == {"proven"}
    assert any("checks/test_demo.py" in str(item["proofs"]) for item in claims.values())


def test_offline_says_in_one_line_what_is_missing(made: Demo) -> None:
    done = made.repository.prove("--json", "-")
    said = [line for line in done.stderr.splitlines() if line.startswith("not at hand: ")]
    assert len(said) == 1 and NAME in said[0] and "not in the cache" in said[0]


def test_all_is_required_only_when_asked(made: Demo) -> None:
    made.repository.file("checks/test_other.py", "def test_other(): pass\n")
    made.repository.card(
        upstreams={"old": {"repo": NAME, "ref": "main", "commit": made.old}},
        claims=[claim("other", "checks/test_other.py")],
    )
    assert made.repository.prove().returncode == 0
    done = made.repository.prove("--require-all")
    assert done.returncode == 1
    assert f"not at hand: {NAME} main {made.old[:12]}" in done.stdout
    assert made.run("upstream", "fetch").returncode == 0
    assert made.repository.prove("--require-all").returncode == 0


def test_upstream_code_that_only_a_test_needs_is_required_too(made: Demo) -> None:
    tests = (
        "import pytest\n"
        "def test_other():\n"
        "    pytest.skip('needs --ringproof-upstream other/lm=git:PATH (for main)')\n"
        "def test_gpu():\n"
        "    pytest.skip('needs 2 GPUs')\n"
    )
    made.repository.file("checks/test_other.py", tests)
    claims = [claim("old", "anchor:a-old"), claim("gpu", "checks/test_other.py::test_gpu")]
    skill = {"upstreams": {"old": {"repo": NAME, "ref": "main", "commit": made.old}}}
    skill["anchors"] = [anchor("a-old", "build", upstream="old")]
    made.repository.card(**skill, claims=claims)
    assert made.run("upstream", "fetch").returncode == 0
    assert made.repository.prove("--require-all").returncode == 0, "a GPU is not upstream code"
    made.repository.card(**skill, claims=[*claims, claim("other", "checks/test_other.py")])
    assert made.repository.prove().returncode == 0
    done = made.repository.prove("--require-all")
    assert done.returncode == 1 and "1 proofs lack code: checks/test_other.py" in done.stdout


def test_a_checkout_that_was_given_is_at_hand(made: Demo) -> None:
    code, _, _ = made.repository.verdicts(
        "--require-all", "--upstream", f"{NAME}=git:{made.server}"
    )
    assert code == 0


def test_without_a_network_it_goes_on_at_once(made: Demo) -> None:
    """A proxy that refuses connections stands for a network that is not there."""
    environment = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:1")
    start = time.monotonic()
    done = made.run("prove", **environment)
    assert time.monotonic() - start < 30
    said = [line for line in done.stderr.splitlines() if line.startswith("not at hand: ")]
    assert len(said) == 1 and "cannot be reached" in said[0], done.stderr
