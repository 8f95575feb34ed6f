"""Committed evidence goes stale when what it depends on changes, and only then."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from checks.prove.miniature import Miniature, anchor, claim, miniature
from ringproof.prove.closure import SourceClosure

pytestmark = pytest.mark.slow

FILES = MappingProxyType(
    {
        "conftest.py": "import shared_fixtures\n",
        "shared_fixtures.py": "",
        "src/pack/__init__.py": "",
        "src/pack/__main__.py": "from pack.commands import main\n",
        "src/pack/commands.py": "def main(): pass\n",
        "src/pack/used.py": "from . import deep\nfrom .sub import leaf as other\n",
        "src/pack/deep.py": "def late():\n    import pack.later\n",
        "src/pack/later.py": "X = 1\n",
        "src/pack/sub/__init__.py": "",
        "src/pack/sub/leaf.py": "",
        "src/pack/unused.py": "",
        "checks/conftest.py": "",
        "checks/test_a.py": "from pack.used import deep\nimport helper\ndef test_a(): pass\n",
        "checks/helper.py": "",
        "checks/test_other.py": "def test_other(): pass\n",
        "checks/sub/conftest.py": "",
        "smoke/test_run.py": "COMMAND = ['python', '-m', 'pack']\ndef test_run(): pass\n",
    }
)


def _repository(root: Path) -> Miniature:
    repository = miniature(root)
    for name, text in FILES.items():
        repository.file(name, text)
    repository.file("pytest.ini", "[pytest]\npythonpath = src .\n")
    repository.card(
        anchors=[anchor("place", "build", "make_group")],
        claims=[
            claim("a", "checks/test_a.py::test_a"),
            claim("run", "smoke/test_run.py"),
            claim("place-holds", "anchor:place"),
            claim("declared", "unproven: no machine"),
        ],
    )
    return repository


def test_the_closure_is_what_the_test_imports(tmp_path: Path) -> None:
    closure = SourceClosure(_repository(tmp_path).root)
    assert closure.files("checks/test_a.py") == (
        "checks/conftest.py",
        "checks/helper.py",
        "checks/test_a.py",
        "conftest.py",
        "shared_fixtures.py",
        "src/pack/__init__.py",
        "src/pack/deep.py",
        "src/pack/later.py",
        "src/pack/sub/__init__.py",
        "src/pack/sub/leaf.py",
        "src/pack/used.py",
    )


def test_what_runs_a_test_is_not_its_own(tmp_path: Path) -> None:
    repository = _repository(tmp_path)
    closure = SourceClosure(repository.root)
    assert closure.files("checks/test_a.py", own=True) == ("checks/helper.py", "checks/test_a.py")
    old = closure.digest("checks/test_a.py", own=True)
    repository.file("src/pack/later.py", "X = 2\n")
    repository.file("checks/conftest.py", "import os\n")
    assert SourceClosure(repository.root).digest("checks/test_a.py", own=True) == old
    repository.file("checks/helper.py", "X = 2\n")
    assert SourceClosure(repository.root).digest("checks/test_a.py", own=True) != old


def test_a_module_started_in_a_subprocess_counts(tmp_path: Path) -> None:
    closure = SourceClosure(_repository(tmp_path).root)
    files = closure.files("smoke/test_run.py")
    assert "src/pack/__main__.py" in files
    assert "src/pack/commands.py" in files
    assert "src/pack/used.py" not in files


def test_unparsable_sources_and_cycles_do_not_stop_it(tmp_path: Path) -> None:
    repository = _repository(tmp_path)
    repository.file("src/pack/deep.py", "import pack.used\nimport pack.broken\n")
    repository.file("src/pack/broken.py", "def (:\n")
    files = SourceClosure(repository.root).files("checks/test_a.py")
    assert "src/pack/broken.py" in files
    assert SourceClosure(repository.root).digest("checks/absent.py") is None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    """Evidence, recorded by a run; the tests below each edit and restore the repository."""
    repository = _repository(tmp_path_factory.mktemp("recorded"))
    code, claims, whole = repository.verdicts("--record", "evidence")
    assert code == 0
    assert whole["stale"] == []
    assert claims["a"]["verdict"] == claims["run"]["verdict"] == "proven"
    return repository


CARD_FILE, RECORD = "skills/demo/card.yaml", "evidence/*/demo.json"


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("src/pack/later.py", "1", "2", "sources changed since: checks/test_a.py::test_a"),
        ("conftest.py", "import", "import os,", "sources changed since: checks/test_a.py::test_a"),
        (CARD_FILE, "make_group", "sizes", "sources changed since: anchor:place"),
        (CARD_FILE, "a is so", "a is certainly so", "reworded or proven otherwise: a"),
        (RECORD, '"version": 3,', '"version": 0,', "written as version 0"),
        (RECORD, "{", "[", "not readable"),
        ("src/pack/unused.py", "", "X = 2", None),
    ],
    ids=["imported", "conftest", "anchor", "reworded", "version", "unreadable", "unrelated"],
)
def test_stale_evidence_is_reported_and_is_no_failure(
    recorded: Miniature, tmp_path: Path, name: str, old: str, new: str, words: str | None
) -> None:
    (path,) = recorded.root.glob(name)
    before = path.read_text()
    assert old in before
    try:
        path.write_text(before.replace(old, new, 1))
        done = recorded.prove("--out", str(tmp_path / "out"))
    finally:
        path.write_text(before)
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("stale: ")]
    assert len(lines) == (words is not None)
    assert words is None or words in lines[0]
