"""The README and the pages for readers of the code agree with the tree."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from checks.running import ringproof
from ringproof.cards import load_card, statements
from ringproof.refuting.refutations import load_refutations

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "ringproof"
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "AGENTS.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    *(
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if "node_modules" not in path.parts
    ),
)
MADE = ("skills/", "reference/", "images/", "pitfalls.md", "proven.md")
"""What is made when the documentation is built, below `docs`."""
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
ROOMS = "|".join(path.name for path in (ROOT / "src" / "ringproof").iterdir() if path.is_dir())
SOURCE = re.compile(rf"`((?:{ROOMS})/[\w./]+)`")
TYPE = re.compile(rf"`([A-Z]\w+)`(?: \| | in )`((?:{ROOMS})/[\w./]+\.py)`")
WORD = re.compile(r"^\| (?!word |---)([^|]+?) \|", re.MULTILINE)
README_LINES = 80
GLOSSARY_WORDS = 25


def broken_links(document: Path, docs: Path = ROOT / "docs") -> list[str]:
    """Return the relative links of a document that lead nowhere.

    Pages that are made when the documentation is built count as there; mkdocs checks these links.
    """
    targets = LINK.findall(CODE.sub("code", document.read_text(encoding="utf-8")))
    return [
        target
        for target in targets
        if not (document.parent / target).exists() and not _is_made(document, target, docs)
    ]


def _is_made(document: Path, target: str, docs: Path) -> bool:
    path = (document.parent / target).resolve()
    if not (document.is_relative_to(docs) and path.is_relative_to(docs)):
        return False
    return path.relative_to(docs).as_posix().startswith(MADE)


def missing_sources(text: str, package: Path) -> list[str]:
    """Return the files and folders of the package that a text names and that do not exist."""
    return [name for name in SOURCE.findall(text) if not (package / name).exists()]


def missing_types(text: str, package: Path) -> list[str]:
    """Return the classes that a text places in a file that does not define them."""
    found = []
    for name, path in TYPE.findall(text):
        tree = ast.parse((package / path).read_text(encoding="utf-8"))
        if name not in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}:
            found.append(f"{name} in {path}")
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_relative_links_lead_somewhere(name: str) -> None:
    assert broken_links(ROOT / name) == []


def test_the_readme_is_short_and_names_both_commands() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README_LINES
    assert {"$ make prove QUICK=1", "$ make test"} <= set(lines)


def test_the_readme_shows_what_doctor_says_of_the_example() -> None:
    done = ringproof("doctor", "examples/train.sh", "--line", "dev", "--quick", cwd=ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    said = re.search(r"^refused: (?:.+\n)+?  remedy: .+$", done.stdout, re.MULTILINE)
    assert said is not None and said[0] in shown


def test_the_reading_order_names_what_exists() -> None:
    text = (ROOT / "docs" / "read-the-code.md").read_text(encoding="utf-8")
    assert len(SOURCE.findall(text)) >= 30
    assert missing_sources(text, PACKAGE) == []
    assert len(TYPE.findall(text)) >= 5
    assert missing_types(text, PACKAGE) == []


def test_the_glossary_is_short_and_sorted() -> None:
    words = WORD.findall((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert 10 <= len(words) <= GLOSSARY_WORDS
    assert words == sorted(set(words))


REFUTED = ("seen-to-fail", "stayed-green", "excused")


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """The committed records of `prove`."""
    found = [json.loads(path.read_text()) for path in (ROOT / "evidence").glob("*/*.json")]
    return [record for record in found if "claims" in record]


def test_the_counts_are_those_of_the_records(records: list[dict[str, Any]]) -> None:
    counts: Counter[str] = Counter()
    for record in records:
        if record["environment"]["class"] == "cpu-gloo":
            counts.update(record["about_upstream"])
    total, executed, read = counts.total(), counts["upstream executed"], counts["read"]
    page = " ".join((ROOT / "docs" / "evidence.md").read_text(encoding="utf-8").split())
    assert (
        f"{total} statements about upstream: {executed} executed in upstream's code, "
        f"{read} read in upstream's code, {total - executed - read} not proven here"
    ) in page
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"executes {executed} of the {total} statements about upstream" in readme


def test_the_page_has_the_counts_of_refutations() -> None:
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8").splitlines()
    for path in (ROOT / "evidence" / "cpu-gloo").glob("refuted-*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        counts = [record["totals"].get(name, 0) for name in REFUTED]
        assert sum(counts) == len(record["refutations"]), f"{path.name} has other outcomes"
        card = ROOT / "cards" / record["skill"] / "card.yaml"
        written = len(load_refutations(card, statements(load_card(card))).all)
        counts.append(written - sum(counts))
        assert f"| `{record['skill']}` | {' | '.join(map(str, counts))} |" in page


def test_the_page_names_what_was_not_executed(records: list[dict[str, Any]]) -> None:
    assert len(records) >= 3
    missing = {
        claim["id"]
        for record in records
        for claim in record["claims"]
        if claim["lines"]
        and claim["kind"] != "anchor"
        and (claim["evidence"] != "upstream executed" or claim["verdict"] != "proven")
    }
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"## What is not executed, and why\n(.*?)\n## ", page, re.DOTALL)
    assert set(re.findall(r"`([a-z][a-z0-9-]+)`", section)) == missing


def test_a_wrong_link_file_and_type_are_seen(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "a.py").write_text("class Plan: ...\n")
    text = (
        "[a](reference/a.py#x) [b](b.py) | `Plan` | `reference/a.py` | `Pack` in `reference/a.py`"
    )
    (tmp_path / "README.md").write_text(text)
    assert broken_links(tmp_path / "README.md") == ["b.py"]
    assert missing_sources("`reference/a.py` `logs/b.py`", tmp_path) == ["logs/b.py"]
    assert missing_types(text, tmp_path) == ["Pack in reference/a.py"]
