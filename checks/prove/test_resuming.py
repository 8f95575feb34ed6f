"""``prove --resume`` runs again only what failed, did not run, or stands on other sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.prove.miniature import Miniature, claim, miniature


@pytest.fixture
def stopped(tmp_path: Path) -> Miniature:
    """A repository whose run had one failure: `test_a` and `test_b` passed, `test_c` did not."""
    made = miniature(tmp_path)
    made.file("src/used.py", "GOOD = True\n")
    for name in ("a", "b", "c"):
        lines = ["import used" if name == "b" else "", f"def test_{name}():"]
        lines += [f"    open('runs.txt', 'a').write({name!r})", f"    assert {name!r} != 'c'"]
        made.file(f"checks/test_{name}.py", "\n".join([*lines, ""]))
    made.file("conftest.py", "import sys\nsys.path.insert(0, 'src')\n")
    made.card(claims=[claim(name, f"checks/test_{name}.py::test_{name}") for name in "abc"])
    code, claims, _ = made.verdicts()
    assert code == 1 and claims["c"]["verdict"] == "refuted"
    assert ran_since(made) == ["a", "b", "c"]
    return made


def ran_since(made: Miniature) -> list[str]:
    """The tests that ran since the last call."""
    path = made.root / "runs.txt"
    found = sorted(path.read_text()) if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def mend(made: Miniature) -> None:
    path = made.root / "checks/test_c.py"
    path.write_text(path.read_text().replace("!= 'c'", "!= 'd'"))


@pytest.mark.slow
def test_only_what_failed_runs_again(stopped: Miniature) -> None:
    mend(stopped)
    code, claims, _ = stopped.verdicts("--resume")
    assert code == 0
    assert ran_since(stopped) == ["c"]
    assert {name: one["verdict"] for name, one in claims.items()} == dict.fromkeys("abc", "proven")
    stopped.verdicts("--resume")  # what was taken over once can be taken over again
    assert ran_since(stopped) == []
    stopped.verdicts()
    assert ran_since(stopped) == ["a", "b", "c"]


def test_other_sources_run_again(stopped: Miniature) -> None:
    stopped.file("src/used.py", "GOOD = False\n")
    stopped.verdicts("--resume")
    assert ran_since(stopped) == ["b", "c"]


def test_other_files_that_tests_may_read_run_all_again(stopped: Miniature) -> None:
    stopped.file("skills/demo/pin.txt", "0.19")
    stopped.verdicts("--resume")
    assert ran_since(stopped) == ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("facts.json", "[]"),
        ("facts.json", '{"sources": 1, "environment": [], "upstreams": {}}'),
        ("events.jsonl", "\0{}"),
    ],
    ids=["no facts", "other facts", "no events"],
)
def test_a_run_that_cannot_be_read_is_not_taken_over(
    stopped: Miniature, name: str, text: str
) -> None:
    (stopped.root / "build/prove" / name).write_text(text)
    assert stopped.verdicts("--resume")[0] == 1
    assert ran_since(stopped) == ["a", "b", "c"]


@pytest.mark.slow
def test_an_interrupted_test_runs_again(stopped: Miniature) -> None:
    """The end of its events is missing, as when the machine was switched off."""
    events = stopped.root / "build/prove/events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    (last,) = (n for n, line in enumerate(lines) if "finish" in line and "test_b" in line)
    events.write_text("".join(lines[:last]))
    stopped.verdicts("--resume")
    assert ran_since(stopped) == ["b", "c"]


@pytest.mark.slow
def test_other_upstreams_run_again(stopped: Miniature) -> None:
    stopped.verdicts("--resume", "--upstream", f"NVIDIA/Megatron-LM=dir:{stopped.root}")
    assert ran_since(stopped) == ["a", "b", "c"]
