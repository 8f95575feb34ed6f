"""``ringproof prove --refute`` over a miniature repository whose refutations have every fate."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from checks.anchors.wheelhouse import make_wheel
from checks.prove.miniature import Miniature, claim, miniature
from ringproof.cards import load_card, statements
from ringproof.prove.closure import SourceClosure
from ringproof.prove.environment import read_environment
from ringproof.prove.suite import ProveRequest, SuiteResult
from ringproof.refuting import outcomes
from ringproof.refuting.editing import EditError, edited_text
from ringproof.refuting.outcomes import Fate, Refuted, read_refuted, seen_sentence, seen_to_fail
from ringproof.refuting.planting import edited_trees
from ringproof.refuting.refutations import SourceEdit, load_refutations
from ringproof.refuting.refute import judge_run
from ringproof.rehearsal.runs.upstreams import unpacked
from ringproof.upstream.tree import WheelTree

TESTS = """
import pytest
from pathlib import Path
from ringproof.upstream.releases import Release

@pytest.fixture
def upstream(request):
    cache = Path(request.config.getoption("--ringproof-cache"))
    text = Release("demo-upstream", "1.0").open(cache, offline=True).read("pkg/mod.py")
    names = {"__name__": "mod"}
    exec(text, names)
    return names

def test_limit(upstream):
    assert upstream["LIMIT"] == 4, "another limit"

def test_names(upstream):
    assert upstream["NAMES"]

@pytest.fixture
def prepared_wrongly(upstream):
    assert upstream["LIMIT"] == 4

def test_set_up(prepared_wrongly):
    pass
"""
REFUTED = {  # statement: its test, what is replaced in pkg/mod.py, the outcome, and words of it
    "limited": ("test_limit", "4", "5", "seen-to-fail", "another limit"),
    "named": ("test_names", "flat", "flut", "stayed-green", "1 tests passed"),
    "misspelled": ("test_limit", "LIMITS", "5", "broken", "'LIMITS' occurs 0 times"),
    "unreadable": ("test_limit", "= 4", "= (", "broken", "is not Python"),
    "unprepared": ("test_set_up", "4", "5", "broken", "test_set_up"),
}
Run = tuple[int, dict[str, dict[str, Any]], Miniature]


def refutation(statement: str, find: str, replace: str, **more: str) -> str:
    found = {"upstream": "demo", "path": "pkg/mod.py", "find": find, "replace": replace, **more}
    lines = [f"{key} = {json.dumps(value)}" for key, value in found.items()]
    head = f"[[refutation]]\nstatement = {statement!r}\n[[refutation.edit]]\n"
    return head + "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = miniature(tmp_path_factory.mktemp("refuted"))
    made.file("checks/test_facts.py", TESTS)
    names = [*REFUTED, "excused"]
    tests = [REFUTED.get(name, ("test_limit",))[0] for name in names]
    claims = [
        claim(name, f"checks/test_facts.py::{test}")
        for name, test in zip(names, tests, strict=True)
    ]
    made.card(claims=claims)
    parts = [refutation(name, *REFUTED[name][1:3]) for name in REFUTED]
    parts.append('[[excused]]\nstatement = "excused"\nwhy = "no source"\n')
    made.file("skills/demo/refutations.toml", "".join(parts))
    made.card("other", claims=claims[:1])
    made.file("skills/other/refutations.toml", parts[0])
    done = made.prove("--refute", "--json", "-", "--record", "evidence", "--jobs", "2")
    assert done.stdout, done.stderr
    skill, other = json.loads(done.stdout)["skills"]
    assert [row["outcome"] for row in other["refutations"]] == ["seen-to-fail"]
    return done.returncode, {row["statement"]: row for row in skill["refutations"]}, made


@pytest.mark.parametrize("name", REFUTED)
def test_each_refutation_has_its_outcome(run: Run, name: str) -> None:
    *_, outcome, words = REFUTED[name]
    row = run[1][name]
    assert row["outcome"] == outcome
    assert words in row["failure"] + row["why"]


def test_an_excuse_is_kept_and_what_stays_green_fails_the_run(run: Run) -> None:
    code, rows, _ = run
    assert code == 1
    assert (rows["excused"]["outcome"], rows["excused"]["why"]) == ("excused", "no source")


def test_skills_with_the_same_statement_have_logs_of_their_own(run: Run) -> None:
    logs = {path.name for path in (run[2].root / "build" / "prove").glob("*limited.log")}
    assert logs == {"refuted-demo-limited.log", "refuted-other-limited.log"}


def summary(made: Miniature, *ids: str) -> str:
    cards = {name: made.root / "skills" / name / "card.yaml" for name in ("demo", "other")}
    claims = [{"id": one, "kind": "claim", "evidence": "upstream executed"} for one in ids]
    records = [{"skill": name, "claims": claims} for name in cards]
    return seen_sentence(made.root / "evidence", cards, records, SourceClosure(made.root))


@pytest.fixture
def copied(run: Run, tmp_path: Path) -> Miniature:
    shutil.copytree(run[2].root, tmp_path / "copy")
    return Miniature(tmp_path / "copy")


def test_the_summary_counts_what_was_seen_to_fail(copied: Miniature) -> None:
    assert summary(copied, "limited", "named").startswith("2 of the 4 that were executed")
    shutil.rmtree(copied.root / "evidence")
    assert summary(copied, "limited") == ""


def test_the_summary_names_stale_rows_with_their_skill(
    copied: Miniature, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied.root / "skills" / "demo" / "refutations.toml"
    path.write_text(path.read_text().replace('replace = "5"', 'replace = "6"', 1))
    one = summary(copied, "limited")
    assert one.startswith("1 of the 2")
    assert one.endswith("; stale: demo/limited")
    (copied.root / "skills" / "other" / "refutations.toml").unlink()
    none = summary(copied, "limited")
    assert none.startswith("0 of the 2")
    assert none.endswith("; stale: demo/limited, other/limited")
    monkeypatch.setattr(outcomes, "MOST", 1)
    assert summary(copied, "limited").endswith("; stale: demo/limited and 1 more")


def test_a_row_of_one_statement_leaves_those_of_other_records(copied: Miniature) -> None:
    (path,) = (copied.root / "evidence").glob("*/refuted-demo.json")
    record = json.loads(path.read_text())
    old = {"statement": "named", "outcome": "seen-to-fail", "proof": "t", "failure": "here"}
    record["environment"] |= {"commit": "c" * 40, "dirty": True}
    path.write_text(json.dumps({**record, "refutations": [old]}))
    elsewhere = copied.file("evidence/8xH200/refuted-demo.json", "")
    gpus = {**old, "statement": "unprepared"}
    elsewhere.write_text(json.dumps({**record, "refutations": [gpus]}))
    done = copied.prove(
        "demo", "--refute", "--statement", "limited", "--record", "evidence", "--json", "-"
    )
    assert done.returncode == 0, done.stderr
    rows = {row["statement"]: row for row in json.loads(path.read_text())["refutations"]}
    assert set(rows) == {"named", "limited"}, "8xH200 is another machine"
    assert (rows["named"]["commit"], rows["named"]["dirty"]) == ("c" * 40, True)
    assert (rows["limited"]["commit"], rows["limited"]["dirty"]) == (None, None), "no checkout"
    assert read_refuted(copied.root / "evidence", "demo")["limited"].commit is None


def test_a_record_holds_until_its_statement_edits_or_test_change(copied: Miniature) -> None:
    made = copied
    card = made.root / "skills" / "demo" / "card.yaml"
    recorded = read_refuted(made.root / "evidence", "demo")
    assert recorded["limited"].proof == "checks/test_facts.py::test_limit"

    def seen(recorded: Mapping[str, Refuted] = recorded) -> frozenset[str]:
        said = statements(load_card(card))
        rows, closure = load_refutations(card, said), SourceClosure(made.root)
        return seen_to_fail(recorded, said, rows, closure)

    assert seen() == {"limited"}
    path = card.with_name("refutations.toml")
    whole = path.read_text()
    path.write_text(whole.replace('replace = "5"', 'replace = "6"', 1))
    assert seen() == frozenset()
    path.write_text(whole.replace("statement = 'limited'", "statement = 'limited'\nproof = 'a'"))
    assert seen() == frozenset()
    path.write_text(whole)
    made.file("conftest.py", "import os\n")
    assert seen() == {"limited"}, "it runs the test, and says nothing about upstream"
    made.file("checks/test_facts.py", TESTS.replace("== 4", "> 0"))
    assert seen() == frozenset()
    old = {name: replace(row, sources="") for name, row in recorded.items()}
    assert seen(old) == {"limited"}, "rows of older records have no digest"
    made.file("checks/test_facts.py", TESTS)
    assert seen() == {"limited"}
    card.write_text(card.read_text().replace("limited is so", "limited is otherwise"))
    assert seen() == frozenset()


@pytest.mark.parametrize("spec", ["dir:given", "installed:pytest"])
def test_upstream_of_a_folder_is_not_edited(tmp_path: Path, spec: str) -> None:
    made = miniature(tmp_path)
    made.file("checks/test_facts.py", TESTS)
    made.card(claims=[claim("limited", "checks/test_facts.py::test_limit")])
    made.file("skills/demo/refutations.toml", refutation("limited", "LIMIT: int = 4", "LIMIT = 5"))
    made.file("given/pkg/mod.py", "LIMIT: int = 4\n")
    done = made.prove("--refute", "--json", "-", "--upstream", f"demo={spec}")
    assert done.returncode == 0, done.stdout + done.stderr
    ((row,),) = (skill["refutations"] for skill in json.loads(done.stdout)["skills"])
    assert row["outcome"] == "not-here"
    assert "edits need a commit or a release" in row["why"]


@pytest.mark.parametrize(("gpus", "cpus", "expected"), [((), 8, 2), ((), 1, 1), (("A",), 8, 1)])
def test_processes_side_by_side_are_those_of_prove(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[str, ...],
    cpus: int,
    expected: int,
) -> None:
    here = replace(read_environment(tmp_path), gpus=gpus, cpus=cpus)
    used: list[int] = []

    def attempts(request: ProveRequest, *_: object) -> Iterator[object]:
        used.append(request.jobs)
        yield from ()

    monkeypatch.setattr("ringproof.cli.prove.read_environment", lambda root: here)
    monkeypatch.setattr("ringproof.refuting.refute._try_all", attempts)
    made = miniature(tmp_path)
    made.card(claims=[claim("a", "unproven: x")])
    assert made.prove("--refute", "--jobs", "0").returncode == 0
    assert used == [expected]


@pytest.mark.slow
def test_an_interrupted_refutation_ends_its_processes(tmp_path: Path) -> None:
    """A generator that is closed ends what it has started."""
    made = miniature(tmp_path)
    pid = tmp_path / "pid"
    lines = ["import os, pathlib, time", "def test_limit():"]
    lines += [f"    pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))", "    time.sleep(60)"]
    made.file("checks/test_facts.py", "\n".join([*lines, ""]))
    made.card(claims=[claim("limited", "checks/test_facts.py::test_limit")])
    made.file("skills/demo/refutations.toml", refutation("limited", "= 4", "= 5"))
    process = subprocess.Popen(made.command("--refute"), cwd=made.root, start_new_session=True)
    while not pid.exists() or not pid.read_text():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert not psutil.pid_exists(int(pid.read_text()))


def test_an_edited_tree_is_unpacked_apart(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"pkg/__init__.py": "", "pkg/mod.py": "LIMIT = 4\n"})

    def limit() -> str:
        tree = WheelTree(wheel, "pip:demo-upstream==1.0", "0" * 64)
        return (unpacked(tree, ("pkg/",), tmp_path) / "pkg" / "mod.py").read_text()

    with edited_trees({"demo-upstream==1.0": {"pkg/mod.py": "LIMIT = 5\n"}}):
        assert limit() == "LIMIT = 5\n"
    assert limit() == "LIMIT = 4\n"
    with edited_trees({"demo-upstream==2.0": {"pkg/mod.py": "LIMIT = 5\n"}}):
        assert limit() == "LIMIT = 4\n"


def edit(**keys: Any) -> SourceEdit:
    return SourceEdit.model_validate({"upstream": "demo", "path": "mod.py", **keys})


SOURCE = "def first():\n    return 1\n\nclass Second:\n    def first(self):\n        return 1\n"


def test_an_edit_is_confined_to_a_definition() -> None:
    changed = edited_text(SOURCE, edit(inside="Second.first", find="1", replace="2"))
    assert changed == SOURCE[:-2] + "2\n"
    assert edited_text(SOURCE, edit(find="1", replace="2", count=2)).count("2") == 2


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"find": "1", "replace": "2"}, "occurs 2 times"),
        ({"find": "1", "replace": "2", "inside": "third"}, "0 definitions of third"),
        ({"find": "1", "replace": "(", "count": 2}, "is not Python"),
        ({"find": "1", "replace": "1", "count": 2}, "by itself"),
    ],
)
def test_an_edit_that_cannot_be_made_is_an_error(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(EditError, match=problem):
        edited_text(SOURCE, edit(**keys))


def phase(when: str, outcome: str, detail: str) -> str:
    fields = {"event": "phase", "id": "t", "seconds": 0, "expected_failure": False}
    return json.dumps(
        {**fields, "properties": [], "when": when, "outcome": outcome, "detail": detail}
    )


@pytest.mark.parametrize(
    ("when", "outcome", "detail", "fate"),
    [
        ("call", "failed", "E   AssertionError: 1", Fate.SEEN),
        ("call", "failed", "E   ImportError: cannot import name", Fate.BROKEN),
        ("setup", "failed", "E   AssertionError: 1", Fate.BROKEN),
        ("call", "skipped", "needs a checkout of demo", Fate.NOT_HERE),
        ("call", "passed", "", Fate.GREEN),
    ],
)
def test_only_a_failure_in_the_call_counts(
    when: str, outcome: str, detail: str, fate: Fate
) -> None:
    suite = SuiteResult()
    for line in (
        json.dumps({"event": "selected", "ids": ["t"]}),
        phase(when, outcome, detail),
        json.dumps({"event": "finish", "id": "t"}),
        json.dumps({"event": "end", "exit": 1}),
    ):
        suite.feed(line)
    suite.end("it ended")
    assert judge_run("s", "d", suite).outcome is fate
