"""``ringproof prove`` over skills that were copied without their tests."""

from __future__ import annotations

from pathlib import Path

from checks.prove.miniature import anchor, claim, miniature
from ringproof.prove.prove import NO_TESTS

TESTED = claim("tested", "checks/test_a.py::test_x")


def test_tests_that_are_not_beside_the_skills_refute_nothing(tmp_path: Path) -> None:
    repository = miniature(tmp_path)
    both = claim("both", "checks/test_a.py::test_x", "anchor:place")
    repository.card(anchors=[anchor("place")], claims=[TESTED, both])
    code, claims, whole = repository.verdicts()
    assert (code, whole["problems"]) == (0, [])
    assert {claims[name]["verdict"] for name in ("tested", "both")} == {"not-here"}
    assert claims["tested"]["reason"] == NO_TESTS
    lines = repository.prove("--html", "page.html", "--verbose").stdout.splitlines()
    page = (repository.root / "build/prove/report.html").read_text()
    assert (repository.root / "page.html").read_text() == page
    said = f"2 of 2 statements have tests that are not beside the skills: {NO_TESTS}"
    assert [line for line in lines if line.startswith(said)] and said in page
    (legend,) = (line for line in lines if line.endswith(": no proof could run here"))
    assert lines.index(legend) < lines.index(next(line for line in lines if "tested" in line))
    assert not any("some proofs passed" in line for line in lines), "no verdict of this run"
    assert page.index("no proof could run here") < page.index("<details")
    code, _, whole = repository.verdicts("--require-all")
    lacking = [problem for problem in whole["problems"] if problem.startswith("demo: ")]
    assert lacking == [f"demo: 1 proofs lack code: checks/test_a.py::test_x: {NO_TESTS}"]
    assert code == 1


def test_in_a_checkout_a_folder_of_tests_that_does_not_exist_refutes(tmp_path: Path) -> None:
    """A checkout with one folder of tests is not taken for skills without their tests."""
    repository = miniature(tmp_path)
    repository.file("checks/test_b.py", "def test_x(): pass\n")
    claims = [claim("wrong", "smoke/test_b.py::test_x"), claim("right", "checks/test_b.py::test_x")]
    repository.card(claims=claims)
    code, found, _ = repository.verdicts()
    assert code == 1
    assert [found[name]["verdict"] for name in ("wrong", "right")] == ["refuted", "proven"]


def test_where_nothing_could_run_the_run_fails_and_refutes_nothing(tmp_path: Path) -> None:
    repository = miniature(tmp_path)
    repository.card(claims=[TESTED])
    code, claims, whole = repository.verdicts()
    assert (code, claims["tested"]["verdict"]) == (1, "not-here")
    assert whole["problems"] == ["demo: no proof was executed"]
    assert "incomplete; 1 statement: 1 not-here" in repository.prove().stdout


def test_a_run_leaves_nothing_but_its_outputs_in_the_repository(tmp_path: Path) -> None:
    repository = miniature(tmp_path)
    drawn = "from hypothesis import given, strategies\n\n@given(strategies.text())\ndef test_x"
    repository.file("checks/test_a.py", f"{drawn}(text): assert text.isascii()\n")
    repository.card(claims=[TESTED])
    before = {path.name for path in tmp_path.iterdir()}
    assert repository.verdicts()[0] == 1
    assert {path.name for path in tmp_path.iterdir()} - before == {"build"}
