"""A skill of somebody else: its first line without a proof, and the example of the how-to."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checks.documented import ROOT
from ringproof.cli.main import app

PAGE = ROOT / "docs" / "how-to" / "prove-in-ci.md"
_FILE = re.compile(r'^( *)```\w+ title="([^"]+)"\n(.*?)^ *```', re.DOTALL | re.MULTILINE)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the how-to, in the current folder."""
    for _, name, text in _FILE.findall(PAGE.read_text(encoding="utf-8")):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prove() -> tuple[int, str]:
    """Prove what is in the current folder; return the exit code and the first line."""
    result = CliRunner().invoke(app, ["prove"], catch_exceptions=False)
    return result.exit_code, result.stdout.splitlines()[0]


def test_without_a_proof_it_is_said_where_to_begin(example: Path) -> None:
    card = example / "skills" / "ignored-labels" / "card.yaml"
    card.write_text(re.sub("checks/.*", "'unproven: not yet'", card.read_text()))
    assert prove() == (
        1,
        "2 statements, none has a proof yet; begin here: write a test of mean-of-none and name it "
        "in the card of ignored-labels, as docs/how-to/prove-in-ci.md shows",
    )


@pytest.mark.slow
def test_the_example_of_the_how_to_is_proven_and_can_be_refuted(example: Path) -> None:
    assert prove() == (0, "nothing refuted; 2 statements: 2 proven")
    test = example / "checks" / "test_ignored_labels.py"
    test.write_text(test.read_text().replace("-100", "1"))
    assert prove() == (1, "failed; 2 statements: 2 refuted")
