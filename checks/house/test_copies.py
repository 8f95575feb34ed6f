"""No test runs a copy of upstream's function, and arithmetic is not told as upstream's behaviour.

A test that runs a copy of a function shows nothing about the function. A copy keeps its operations
and their order when variables are renamed, methods become functions, and annotations and docstrings
go; what is compared is therefore the sequence of operations, constants, attributes and built-in
names, in pieces of `WIDTH`. A rule that fits on one line is too short to be told from others. The
copies are looked for in what is at hand: the installed release of Megatron-LM, and the checkouts
that were given (see `checks/skills/conftest.py`).
"""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ringproof.cards import Card, ProofKind, find_cards, load_card
from ringproof.cards.card import RepositoryUpstream
from ringproof.cards.statements import statements
from ringproof.prove.anchoring import CACHE_OPTION, UPSTREAM_OPTION, given_tree
from ringproof.prove.touches import Evidence
from ringproof.upstream.tree import UpstreamUnavailable

WIDTH = 8
SHORTEST = 32
SHARE = 0.6

Piece = tuple[str, ...]


@dataclass(frozen=True)
class Shape:
    """A function.

    Attributes:
        place: Its file and name.
        pieces: How often each piece of its sequence occurs.
    """

    place: str
    pieces: Counter[Piece]

    def share_in(self, other: Shape) -> float:
        """Share of its pieces that the other one has, too."""
        return (self.pieces & other.pieces).total() / self.pieces.total()


def shapes(place: str, source: str | bytes) -> Iterator[Shape]:
    """Functions of a file, those inside of others included; short ones have no telling shape."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            words = [word for statement in _body(node) for word in _words(statement)]
            if len(words) >= SHORTEST:
                ends = range(WIDTH, len(words) + 1)
                pieces = Counter(tuple(words[end - WIDTH : end]) for end in ends)
                yield Shape(f"{place}::{node.name}", pieces)


def copies(ours: Iterable[Shape], upstream: Iterable[Shape]) -> list[str]:
    """Our functions of which most pieces stand in one function of upstream."""
    holders: dict[Piece, list[Shape]] = {}
    for our in ours:
        for piece in our.pieces:
            holders.setdefault(piece, []).append(our)
    found = set()
    for their in upstream:
        near = {our.place: our for piece in their.pieces for our in holders.get(piece, ())}
        close = (our for our in near.values() if our.share_in(their) >= SHARE)
        found |= {f"{our.place} copies {their.place}" for our in close}
    return sorted(found)


def _body(node: ast.FunctionDef) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def _words(node: ast.AST) -> Iterator[str]:
    """The sequence of a node; names that a copy can change are left out."""
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
        yield "Name"
        return
    yield type(node).__name__
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Constant):
        yield repr(node.value)
    elif isinstance(node, ast.Name) and hasattr(builtins, node.id):
        yield node.id
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr_context) and child is not _annotation(node):
            yield from _words(child)


def _annotation(node: ast.AST) -> ast.AST | None:
    """The annotation of an argument or an assignment."""
    return getattr(node, "annotation", None)


ROOT = Path(__file__).parents[2]
CARDS = tuple(load_card(path) for path in find_cards(ROOT / "cards").values())
PATHS = sorted({a.path for card in CARDS for a in card.anchors if a.path.endswith(".py")})
COMMITS = {
    upstream.commit: (card, key)
    for card in CARDS
    for key, upstream in card.upstreams.items()
    if isinstance(upstream, RepositoryUpstream)
}


@pytest.fixture(scope="module")
def ours() -> list[Shape]:
    """Functions of the files that cards name as proofs, and of what those import beside them."""
    named = {
        ROOT / proof.file
        for card in CARDS
        for statement in statements(card)
        for proof in statement.proofs
        if proof.kind is ProofKind.PYTEST and statement.lines
    }
    files = {path for path in named if path.is_file()} | {*(ROOT / "checks/skills").glob("*.py")}
    assert len(files) > 10
    return [shape for path in sorted(files) for shape in shapes(str(path), path.read_text("utf-8"))]


def installed() -> Iterator[Shape]:
    try:
        root = Path(str(metadata.distribution("megatron-core").locate_file("")))
    except metadata.PackageNotFoundError:
        pytest.skip("needs megatron-core")
    for path in PATHS:
        if (root / path).is_file():
            yield from shapes(path, (root / path).read_bytes())


def test_no_test_copies_the_installed_release(ours: list[Shape]) -> None:
    theirs = list(installed())
    assert len(theirs) > 100
    assert copies(ours, theirs) == []


@pytest.mark.parametrize("commit", sorted(COMMITS))
def test_no_test_copies_a_checkout(
    request: pytest.FixtureRequest, ours: list[Shape], commit: str
) -> None:
    card, key = COMMITS[commit]
    theirs = list(_at(request, card, key))
    assert theirs
    assert copies(ours, theirs) == []


def _at(request: pytest.FixtureRequest, card: Card, key: str) -> Iterator[Shape]:
    entries = request.config.getoption(UPSTREAM_OPTION, default=None) or []
    cache = request.config.getoption(CACHE_OPTION, default=None)
    try:
        tree = given_tree(entries, card, key, cache=cache)
    except UpstreamUnavailable as error:
        pytest.skip(str(error))
    there = {*tree.paths("megatron/"), *tree.paths("transformer_engine/"), *tree.paths("src/")}
    for path in sorted(there.intersection(PATHS)):
        yield from shapes(path, tree.read(path))


THEIRS = '''
class Scheduler:
    def fill(self, table: list[list[int]], limit: int) -> list[int]:
        """What it does."""
        found = []
        for index, entries in enumerate(table):
            while self.weight(entries) > limit and len(entries) > 1:
                found.append(entries.pop())
                self.count += index * 2
        return sorted(found, key=lambda entry: entry % 7)
'''
COPIED = """
def what_fits(rows, most):
    taken = []
    for number, row in enumerate(rows):
        while weight(row) > most and len(row) > 1:
            taken.append(row.pop())
            count += number * 2
    return sorted(taken, key=lambda one: one % 7)
"""
OTHER = """
def what_fits(rows, most):
    taken = [row[1:] for row in rows if sum(row) > most]
    kept = {number: row for number, row in enumerate(rows) if sum(row) <= most}
    return [one for row in taken for one in row], kept, max(map(len, rows), default=0)
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (COPIED, True),
        (THEIRS, True),
        (COPIED.replace("    taken = []\n", "    taken = []\n    assert rows, most\n"), True),
        (COPIED.replace("one % 7", "-one"), True),
        (OTHER, False),
        ("def what_fits(rows, most):\n    return len(rows) > most", False),
    ],
)
def test_a_copy_is_seen_whatever_it_is_called(source: str, found: bool) -> None:
    told = copies(shapes("test_x.py", source), shapes("up.py", THEIRS))
    assert bool(told) == found
    assert all(re.fullmatch(r"test_x.py::\w+ copies up.py::fill", line) for line in told)


def test_a_planted_copy_of_the_release_is_seen(ours: list[Shape]) -> None:
    """One of upstream's own functions among ours, read at run time."""
    theirs = list(installed())
    planted = Shape("checks/skills/test_planted.py::rule", theirs[0].pieces)
    assert f"{planted.place} copies {theirs[0].place}" in copies([*ours, planted], theirs)


def misplaced(record: dict[str, Any]) -> list[str]:
    """Arithmetic that supports a statement about upstream outside of the files for arithmetic."""
    return sorted(
        {
            f"{claim['id']}: {proof['id']}"
            for claim in record["claims"]
            if claim.get("lines")
            for proof in claim["proofs"]
            if proof.get("evidence") == Evidence.DERIVED.value
            and not proof["id"].split("::")[0].endswith("_arithmetic.py")
        }
    )


def test_arithmetic_about_upstream_has_its_own_files() -> None:
    records = sorted((ROOT / "evidence").glob("*/*.json"))
    assert records
    found = [json.loads(path.read_text("utf-8")) for path in records]
    assert [line for record in found if "claims" in record for line in misplaced(record)] == []


@pytest.mark.parametrize(
    ("file", "lines", "evidence", "found"),
    [
        ("test_x.py", ["v1"], Evidence.DERIVED, True),
        ("test_x_arithmetic.py", ["v1"], Evidence.DERIVED, False),
        ("test_x.py", [], Evidence.DERIVED, False),
        ("test_x.py", ["v1"], Evidence.UPSTREAM, False),
    ],
)
def test_misplaced_arithmetic_is_seen(
    file: str, lines: list[str], evidence: Evidence, found: bool
) -> None:
    proof = {"id": f"checks/{file}::test_a", "evidence": evidence.value}
    record = {"claims": [{"id": "claim.a", "lines": lines, "proofs": [proof]}]}
    assert bool(misplaced(record)) == found
