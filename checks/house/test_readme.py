"""What the README says of the tree is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md", "benchmarks/README.md")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)\)")
COUNTED = re.compile(r"\]\((?P<path>[^)]+)\) \[(?P<lines>\d+)\]")
# A count is for orientation: it may drift this far before somebody has to look.
TOLERANCE = 0.2


def off_by_too_much(text: str, root: Path) -> list[str]:
    """Files whose stated length is not near the real one."""
    found = []
    for match in COUNTED.finditer(text):
        lines = len((root / match["path"]).read_text(encoding="utf-8").splitlines())
        if abs(lines - int(match["lines"])) > TOLERANCE * lines:
            found.append(f"{match['path']}: {lines} lines, not {match['lines']}")
    return found


def broken_links(document: Path) -> list[str]:
    """Relative links that lead nowhere."""
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    return [target for target in targets if not (document.parent / target).exists()]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_relative_links_lead_somewhere(name: str) -> None:
    assert broken_links(ROOT / name) == []


def test_the_reading_order_states_real_lengths() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(COUNTED.findall(text)) >= 10
    assert off_by_too_much(text, ROOT) == []


def test_a_wrong_link_and_a_wrong_length_are_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x\n" * 10)
    (tmp_path / "README.md").write_text("[`a`](a.py) [10] [`b`](b.py) [3] [`a`](a.py) [13]")
    assert broken_links(tmp_path / "README.md") == ["b.py"]
    text = "[`a`](a.py) [10] [`a`](a.py) [13]"
    assert off_by_too_much(text, tmp_path) == ["a.py: 10 lines, not 13"]
