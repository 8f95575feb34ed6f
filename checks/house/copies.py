"""Functions that are copies of upstream's, found by their shape.

A test that runs a copy of a function shows nothing about the function. A copy keeps its operations
and their order when variables are renamed, methods become functions, and annotations and docstrings
go; what is compared is therefore the sequence of operations, constants, attributes and built-in
names, in pieces of `WIDTH`. A rule that fits on one line is too short to be told from others.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
