"""A miniature repository in which every kind of proof has every fate, and what to expect."""

from __future__ import annotations

from types import MappingProxyType

from checks.proofs.miniature import Miniature, anchor, claim

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

CLAIMS = (
    claim("passes", "checks/test_fates.py::test_pass"),
    claim("passes-too", "checks/test_fates.py::test_pass", "smoke/test_more.py"),
    claim("parameters", "checks/test_fates.py::test_param"),
    claim("one-parameter", "checks/test_fates.py::test_param[2]"),
    claim("in-class", "checks/test_fates.py::TestGroup::test_in_class"),
    claim("fails", "checks/test_fates.py::test_fail"),
    claim("passes-and-fails", "checks/test_fates.py::test_pass", "checks/test_fates.py::test_fail"),
    claim("skipped", "checks/test_fates.py::test_skip"),
    claim("slow", "checks/test_fates.py::test_slow"),
    claim("expected-failure", "checks/test_fates.py::test_expected_failure"),
    claim("setup-error", "checks/test_fates.py::test_setup_error"),
    claim("teardown-error", "checks/test_fates.py::test_teardown_error"),
    claim("of-nothing", "checks/test_fates.py::test_of_nothing"),
    claim("no-test", "checks/test_fates.py::test_pas"),
    claim("no-parameter", "checks/test_fates.py::test_param[4]"),
    claim("passes-and-vanished", "checks/test_fates.py::test_pass", "checks/test_fates.py::test_x"),
    claim("no-file", "checks/test_gone.py::test_pass"),
    claim("unimportable", "checks/test_broken.py::test_pass"),
    claim("module-skipped", "checks/test_elsewhere.py::test_pass"),
    claim("anchored", "anchor:holds"),
    claim("anchored-below-src", "anchor:in-the-repository"),
    claim("anchored-wrongly", "checks/test_fates.py::test_pass", "anchor:moved-away"),
    claim("anchored-elsewhere", "anchor:repository"),
    claim("anchor-and-skip", "anchor:holds", "checks/test_fates.py::test_skip"),
    claim("declared", "unproven: nobody has a <cluster>"),
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
        "ruled": ("refuted", "expectation missing"),
        "passes": ("proven", ""),
        "passes-too": ("proven", ""),
        "parameters": ("partly", "1 skipped: needs 2 GPUs"),
        "one-parameter": ("proven", ""),
        "in-class": ("proven", ""),
        "fails": ("refuted", "AssertionError: one is not two"),
        "passes-and-fails": ("refuted", "test_fail"),
        "skipped": ("not-here", "needs 8 GPUs"),
        "slow": ("proven", ""),
        "expected-failure": ("refuted", "known to be wrong"),
        "setup-error": ("refuted", "test_setup_error"),
        "teardown-error": ("refuted", "test_teardown_error"),
        "of-nothing": ("not-here", "empty parameter set"),
        "no-test": ("refuted", "names no test"),
        "no-parameter": ("refuted", "names no test"),
        "passes-and-vanished": ("refuted", "names no test"),
        "no-file": ("refuted", "no file checks/test_gone.py"),
        "unimportable": ("refuted", "no_such_module"),
        "module-skipped": ("not-here", "needs a cluster"),
        "anchored": ("proven", ""),
        "anchored-below-src": ("proven", ""),
        "anchored-wrongly": ("refuted", "new_group"),
        "anchored-elsewhere": ("not-here", "needs a checkout of NVIDIA/Megatron-LM"),
        "anchor-and-skip": ("not-here", "needs 8 GPUs"),
        "declared": ("unproven", "nobody has a <cluster>"),
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
        validation_status={"good": ["passes", "holds"], "bad": ["passes", "fails"]},
    )
