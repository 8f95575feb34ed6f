"""A miniature repository in which every kind of proof has every fate, and what to expect."""

from __future__ import annotations

import re
from types import MappingProxyType

from checks.prove.miniature import Miniature, anchor, claim

FATES = """
import pytest

def test_pass(record_property):
    record_property("groups", 4)

@pytest.mark.parametrize("n", [1, 2, 3])
def test_param(n, record_property):
    record_property("max_abs_error", n * 1e-15)
    record_property("backend", "gloo")
    if n == 3:
        record_property("max_abs_error", 7.0)
        pytest.skip("needs 2 GPUs")

def test_fail():
    print("last <words>")
    assert 1 == 2, "one is not two"

@pytest.mark.skip(reason="needs 8 GPUs")
def test_skip():
    pass

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.xfail(reason="known to be wrong")
def test_expected_failure():
    assert False

@pytest.fixture
def broken():
    raise RuntimeError("no set-up")

def test_setup_error(broken):
    pass

@pytest.fixture
def unclean():
    yield
    raise RuntimeError("no tear-down")

def test_teardown_error(unclean):
    pass

@pytest.mark.parametrize("n", [])
def test_of_nothing(n):
    pass

def test_unnamed_by_any_card():
    raise SystemExit("must not run")

class TestGroup:
    def test_in_class(self):
        pass
"""

# Id of the claim, its proofs, the verdict, and words of the reason.
FATES_OF_CLAIMS = (
    ("passes", ["test_pass"], "proven", ""),
    ("passes-too", ["test_pass", "smoke/test_more.py"], "proven", ""),
    ("parameters", ["test_param"], "partly", "1 skipped: needs 2 GPUs"),
    ("one-parameter", ["test_param[2]"], "proven", ""),
    ("in-class", ["TestGroup::test_in_class"], "proven", ""),
    ("fails", ["test_fail"], "refuted", "AssertionError: one is not two"),
    ("passes-and-fails", ["test_pass", "test_fail"], "refuted", "test_fail"),
    ("skipped", ["test_skip"], "not-here", "needs 8 GPUs"),
    ("slow", ["test_slow"], "proven", ""),
    ("expected-failure", ["test_expected_failure"], "refuted", "known to be wrong"),
    ("setup-error", ["test_setup_error"], "refuted", "test_setup_error"),
    ("teardown-error", ["test_teardown_error"], "refuted", "test_teardown_error"),
    ("of-nothing", ["test_of_nothing"], "not-here", "empty parameter set"),
    ("no-test", ["test_pas"], "refuted", "names no test"),
    ("no-parameter", ["test_param[4]"], "refuted", "names no test"),
    ("passes-and-vanished", ["test_pass", "test_x"], "refuted", "names no test"),
    ("no-file", ["checks/test_gone.py::test_pass"], "refuted", "no file checks/test_gone.py"),
    ("unimportable", ["checks/test_broken.py::test_pass"], "refuted", "no_such_module"),
    ("module-skipped", ["checks/test_elsewhere.py::test_pass"], "not-here", "needs a cluster"),
    ("anchored", ["anchor:holds"], "proven", ""),
    ("anchored-below-src", ["anchor:in-the-repository"], "proven", ""),
    ("anchored-wrongly", ["test_pass", "anchor:moved-away"], "refuted", "new_group"),
    (
        "anchored-elsewhere",
        ["anchor:repository"],
        "not-here",
        "a checkout of NVIDIA/Megatron-LM",
    ),
    ("anchor-and-skip", ["anchor:holds", "test_skip"], "not-here", "needs 8 GPUs"),
    ("declared", ["unproven: nobody has a <cluster>"], "unproven", "nobody has a <cluster>"),
)
CLAIMS = tuple(
    claim(name, *(re.sub("^(test_|Test)", r"checks/test_fates.py::\1", proof) for proof in proofs))
    for name, proofs, _, _ in FATES_OF_CLAIMS
)
ANCHORS = (
    anchor("holds", "build", "make_group"),
    {**anchor("in-the-repository"), "path": "src/pkg/mod.py"},
    anchor("moved-away", "build", "new_group"),
    anchor("repository", upstream="lm"),
    anchor("loose", "chosen"),
)
CONSTRAINT = MappingProxyType(
    {
        "id": "ruled",
        "says": "sizes multiply",
        "rule": "product",
        "upstream_anchor": "moved-away",
        "proof": "checks/test_fates.py::test_pass",
    }
)
VERDICTS = MappingProxyType(
    {
        **{name: (verdict, words) for name, _, verdict, words in FATES_OF_CLAIMS},
        "ruled": ("refuted", "expectation missing"),
        "known_limitations[0]": ("unproven", "prose"),
        "loose": ("refuted", "chosen#1"),
    }
)


def populate(repository: Miniature) -> None:
    repository.file("checks/test_fates.py", FATES)
    repository.file("checks/test_broken.py", "import no_such_module\ndef test_pass(): pass\n")
    repository.file(
        "checks/test_elsewhere.py",
        "import pytest\npytest.skip('needs a cluster', allow_module_level=True)\n",
    )
    repository.file("smoke/test_more.py", "def test_one(): pass\ndef test_two(): pass\n")
    repository.card(
        anchors=list(ANCHORS),
        claims=list(CLAIMS),
        constraints=[dict(CONSTRAINT)],
        known_limitations=["Only said."],
        validation_status={
            "good": ["passes", "holds"],
            "bad": ["passes", "fails"],
            "elsewhere": ["passes", "parameters", "anchor-and-skip"],
        },
    )
