"""Finds mentions of code in text: ``path:line``, and symbols listed after a path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from markdown_it.token import Token

_SUFFIXES = (
    "py|pyi|pyx|c|cc|cpp|cxx|cu|cuh|h|hh|hpp|rs|go|java|kt|js|jsx|ts|tsx|rb|swift|sh|bash|"
    "md|rst|txt|toml|ya?ml|json|cfg|ini|cmake|proto|sql|j2|lock|ipynb|html|css|xml|csv|mk"
)
_FILE = rf"(?:\.{{0,2}}/)?(?:[\w.@+-]+/)*[\w.@+-]*\w\.(?:{_SUFFIXES})"
_LINES = r":L?(\d{1,9})(?:[-–]L?(\d{1,9}))?"  # noqa: RUF001, an en dash is what people write
_PATH = re.compile(_FILE)
_CODE_MENTION = re.compile(rf"({_FILE}){_LINES}")
_TEXT_MENTION = re.compile(rf"(?<![\w./:@+-])({_FILE}){_LINES}(?![\w:]|[.,-]\d)")
_SYMBOL = re.compile(r"--[A-Za-z][\w-]+|[A-Za-z_]\w*(?:(?:\.|::)[A-Za-z_]\w*)*(?:\(\))?")
_CONSTANTS = frozenset(("True", "False", "None", "true", "false", "null", "int", "str", "bool"))
# Text between a path and its symbols, or two symbols: punctuation, a cell's border, "and".
_BETWEEN = re.compile(r"[^\w.`]*(?:(?:and|or)\b[^\w.`]*)?")
# Text between a symbol and its line: "X (path:1)", "X in path:1", "X runs at ...".
_BEFORE = re.compile(
    r"[^\w.;`]*(?:(?:(?:is|are|runs|lives|defined|called)\s+)*(?:in|at)\s+)?[(\[]?"
)
_PLACEHOLDER = re.compile(r"(?:path/to/|foo\.|example\.)")


@dataclass(frozen=True)
class TextPiece:
    """A part of one block: text, a code span, or a ``path:line`` (from either)."""

    kind: Literal["text", "code", "mention"]
    content: str


@dataclass(frozen=True)
class Pointer:
    """A ``path:line`` mention.

    Args:
        literal: Whole text, which is searched in the document.
        numbers: Start and end of each number inside ``literal``.
        name: Symbol beside it; empty if there is none.
    """

    literal: str
    path: str
    start: int
    end: int
    numbers: tuple[tuple[int, int], ...]
    name: str


def pieces(tokens: Sequence[Token]) -> list[TextPiece]:
    """Split one block into text and code spans: a paragraph, a heading, or the cells of a row."""
    found: list[TextPiece] = []
    for number, token in enumerate(tokens):
        if number:
            found.append(TextPiece("text", " | "))
        for child in token.children or ():
            if child.type == "code_inline":
                whole = _CODE_MENTION.fullmatch(child.content)
                found.append(TextPiece("mention" if whole else "code", child.content))
            elif child.type == "text":
                found.extend(_split(child.content))
            elif child.type in ("softbreak", "hardbreak"):
                found.append(TextPiece("text", " "))
    return _merged(found)


def _split(text: str) -> Iterator[TextPiece]:
    at = 0
    for match in _TEXT_MENTION.finditer(text):
        yield TextPiece("text", text[at : match.start()])
        yield TextPiece("mention", match.group())
        at = match.end()
    yield TextPiece("text", text[at:])


def _merged(found: Sequence[TextPiece]) -> list[TextPiece]:
    merged: list[TextPiece] = []
    for piece in found:
        if merged and piece.kind == "text" == merged[-1].kind:
            merged[-1] = TextPiece("text", merged[-1].content + piece.content)
        elif piece.content:
            merged.append(piece)
    return merged


def pointers(block: Sequence[TextPiece]) -> Iterator[Pointer]:
    """Yield every ``path:line`` of a block, except examples such as ``path/to/file.py:1``."""
    for at, piece in enumerate(block):
        match = _CODE_MENTION.fullmatch(piece.content) if piece.kind == "mention" else None
        if match is None or _PLACEHOLDER.match(match[1]):
            continue
        numbers = tuple(match.span(group) for group in (2, 3) if match[group] is not None)
        start = int(match[2])
        end = int(match[3]) if match[3] is not None else start
        name = _name_before(block, at) or _name_behind(block, at)
        yield Pointer(piece.content, match[1], start, end, numbers, name)


def _name_before(block: Sequence[TextPiece], at: int) -> str:
    if at < 2 or block[at - 1].kind != "text" or not _BEFORE.fullmatch(block[at - 1].content):
        return ""
    return _symbol(block[at - 2])


def _name_behind(block: Sequence[TextPiece], at: int) -> str:
    if at + 2 >= len(block) or not _BETWEEN.fullmatch(block[at + 1].content):
        return ""
    # "`a.py:1`, `name`" is an enumeration; a dash, a colon or a bracket joins the two.
    if not re.search(r"[—–:(|-]", block[at + 1].content):  # noqa: RUF001
        return ""
    return _symbol(block[at + 2])


def listed(block: Sequence[TextPiece]) -> Iterator[tuple[str, str]]:
    """Yield path and symbol for each symbol that follows a path after punctuation."""
    path = ""
    for at, piece in enumerate(block):
        if piece.kind == "text":
            if not _BETWEEN.fullmatch(piece.content):
                path = ""
        elif piece.kind == "mention":
            path = ""
        elif _PATH.fullmatch(piece.content):
            path = "" if _PLACEHOLDER.match(piece.content) else piece.content
        elif path and at and (name := _symbol(piece)):
            yield path, name
        else:
            path = ""


def _symbol(piece: TextPiece) -> str:
    if piece.kind != "code" or len(piece.content) < 3 or piece.content in _CONSTANTS:
        return ""
    plain = _SYMBOL.fullmatch(piece.content) and not _PATH.fullmatch(piece.content)
    return piece.content if plain else ""
