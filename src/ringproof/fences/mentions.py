"""Finds mentions of code in Markdown: fences, ``path:line``, and symbols listed after a path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from markdown_it.token import Token

from ringproof.errors import InputError
from ringproof.markdown import parse, split_lines, without_frontmatter

Kind = Literal["fence", "inline", "symbol"]

MAX_DOCUMENT_BYTES = 1_000_000
MAX_MENTIONS = 1_000
MAX_LINE_CHARACTERS = 20_000

_INFO = re.compile(r"(\d{1,9}):(\d{1,9}):(\S.*)")
_OPENING = re.compile(rb"(?:`{3,}|~{3,})[ \t]*(\d{1,9}):(\d{1,9}):")
_LINE_END = re.compile(rb"\r\n?|\n")
_SUFFIXES = (
    "py|pyi|pyx|c|cc|cpp|cxx|cu|cuh|h|hh|hpp|rs|go|java|kt|js|jsx|ts|tsx|rb|swift|sh|bash|"
    "md|rst|txt|toml|ya?ml|json|cfg|ini|cmake|proto|sql|j2|lock|ipynb|html|css|xml|csv|mk"
)
_FILE = rf"(?:\.{{0,2}}/)?(?:[\w.@+-]+/)*[\w.@+-]*\w\.(?:{_SUFFIXES})"
_LINES = r":L?(\d{1,9})(?:[-–]L?(\d{1,9}))?"  # noqa: RUF001, an en dash is what people write
_PATH = re.compile(_FILE)
_MENTION = re.compile(rf"({_FILE}){_LINES}")
_PIECE = re.compile(rf"`[^`]*`|(?<![\w./:@+-]){_FILE}{_LINES}(?![\w:]|[.,-]\d)")
_SYMBOL = re.compile(r"--[A-Za-z][\w-]+|[A-Za-z_]\w*(?:(?:\.|::)[A-Za-z_]\w*)*(?:\(\))?")
_CONSTANTS = frozenset(("True", "False", "None", "true", "false", "null", "int", "str", "bool"))
# Text between a path and its symbols, or two symbols: punctuation, a cell's border, "and".
_BETWEEN = re.compile(r"[^\w.`]*(?:(?:and|or)\b[^\w.`]*)?")
_JOINT = re.compile(r"[—–:(|-]")  # noqa: RUF001 # as people write
# Text between a symbol and its line: "X (path:1)", "X in path:1", "X runs at ...".
_BEFORE = re.compile(
    r"[^\w.;`]*(?:(?:(?:is|are|runs|lives|defined|called)\s+)*(?:in|at)\s+)?[(\[]?"
)
_PLACEHOLDER = re.compile(r"(?:path/to/|foo\.|example\.)")


@dataclass(frozen=True)
class ByteSpan:
    """Position of a number in a document: ``data[start:end]`` are its digits."""

    start: int
    end: int


@dataclass(frozen=True)
class Mention:
    """A mention of code in a document.

    Attributes:
        kind: ``fence`` (info string ``start:end:path``), ``inline`` (``path:line``,
            ``path:start-end``) or ``symbol`` (a name listed behind a path).
        start, end: First and last line as written; ``None`` for a symbol.
        line: Line in the document, from 1.
        quote: Lines of a fence; for the other kinds, the name beside the path, or nothing.
        spans: Positions of the numbers: two for a range, one for a line, none for a symbol.
    """

    kind: Kind
    path: str
    start: int | None
    end: int | None
    line: int
    quote: tuple[str, ...] = ()
    spans: tuple[ByteSpan, ...] = ()


@dataclass(frozen=True)
class _Piece:
    """A code span, or a ``path:line`` in text or in a code span.

    Attributes:
        mention: Groups of a ``path:line``.
        before: Text between the previous piece and this one.
    """

    content: str
    mention: re.Match[str] | None
    before: str


_Pointer = tuple[re.Match[str], str]
"""A whole ``path:line`` with its groups, and the symbol beside it; empty if there is none."""


def find_mentions(data: bytes, file: str) -> tuple[Mention, ...]:
    """Return all mentions of a document, in order.

    YAML frontmatter, HTML, and code blocks other than ``start:end:path`` fences are ignored.

    Raises:
        InputError: The document is too large, binary, not UTF-8, or has more than ``MAX_MENTIONS``.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise _refusal(file, f"{len(data):,} bytes are too large for a skill's document")
    if b"\0" in data:
        raise _refusal(file, "is a binary file")
    starts = [0, *(match.end() for match in _LINE_END.finditer(data)), len(data)]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(file, "is not UTF-8") from error
    lines = split_lines(text)
    if max(map(len, lines)) > MAX_LINE_CHARACTERS:
        raise _refusal(file, f"has a line of more than {MAX_LINE_CHARACTERS:,} characters")
    try:
        tokens = parse(without_frontmatter(lines))
    except ValueError as error:
        raise _refusal(file, "cannot be parsed as Markdown") from error
    found: list[Mention] = []
    for mention in _mentions(tokens, data, starts):
        found.append(mention)
        if len(found) > MAX_MENTIONS:
            raise _refusal(file, f"has more than {MAX_MENTIONS:,} mentions of code")
    return tuple(found)


def _refusal(file: str, problem: str) -> InputError:
    return InputError(file, None, problem, "leave it out of PATH")


def _mentions(tokens: Sequence[Token], data: bytes, starts: Sequence[int]) -> Iterator[Mention]:
    lists = 0
    row: list[Token] | None = None
    for token in tokens:
        lists += (token.type == "list_item_open") - (token.type == "list_item_close")
        if token.type == "fence":
            yield from _fence(token, data, starts)
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and row is not None:
            yield from _block(row, data, starts, is_list=True)
            row = None
        elif token.type == "inline" and row is not None:
            row.append(token)
        elif token.type == "inline":
            yield from _block([token], data, starts, is_list=lists > 0)


def _fence(token: Token, data: bytes, starts: Sequence[int]) -> Iterator[Mention]:
    info = _INFO.fullmatch(token.info.strip())
    if info is None or token.map is None:
        return
    line = token.map[0]
    opening = _OPENING.search(data, starts[line], starts[line + 1])
    if opening is None or (int(opening[1]), int(opening[2])) != (int(info[1]), int(info[2])):
        return  # the numbers are written as entities and cannot be corrected
    spans = (ByteSpan(*opening.span(1)), ByteSpan(*opening.span(2)))
    quote = tuple(token.content.split("\n"))
    yield Mention("fence", info[3].strip(), int(info[1]), int(info[2]), line + 1, quote, spans)


def _block(
    tokens: Sequence[Token], data: bytes, starts: Sequence[int], *, is_list: bool
) -> Iterator[Mention]:
    if not tokens or tokens[0].map is None:
        return
    first, behind = tokens[0].map
    block = _pieces(tokens)
    low, high = starts[first], starts[min(behind, len(starts) - 1)]
    for (match, name), at in _located(list(_pointers(block)), data, low, high):
        spans = tuple(_span(match, group, at) for group in (2, 3) if match[group] is not None)
        line = first + len(_LINE_END.findall(data, low, at)) + 1
        start, end = int(match[2]), int(match[3] or match[2])
        yield Mention("inline", match[1], start, end, line, (name,) if name else (), spans)
    for path, name in _listed(block) if is_list else ():
        yield Mention("symbol", path, None, None, first + 1, (name,))


def _span(match: re.Match[str], group: int, at: int) -> ByteSpan:
    begin, end = (len(match.string[:place].encode()) for place in match.span(group))
    return ByteSpan(at + begin, at + end)


def _located(
    found: Sequence[_Pointer], data: bytes, low: int, high: int
) -> Iterator[tuple[_Pointer, int]]:
    """Yield each pointer with its offset in the document.

    Pointers with escapes, or whose text also occurs elsewhere (in the target of a link), are left
    out, since a correction could change the wrong one.
    """
    for literal in dict.fromkeys(match[0] for match, _ in found):
        same = [pointer for pointer in found if pointer[0][0] == literal]
        # Word characters and "/" around it belong to another mention.
        pattern = re.compile(rb"(?<![\w/.])" + re.escape(literal.encode()) + rb"(?![\w]|-\d)")
        places = [match.start() for match in pattern.finditer(data, low, high)]
        if len(places) == len(same):
            yield from zip(same, places, strict=True)


def _pieces(tokens: Sequence[Token]) -> list[_Piece]:
    """Find the code spans and mentions of one block: a paragraph, a heading, or a table row."""
    cells = (map(_written, token.children or ()) for token in tokens)
    text = " | ".join("".join(cell) for cell in cells)
    pieces, at = [], 0
    for found in _PIECE.finditer(text):
        content = found[0].strip("`")
        pieces.append(_Piece(content, _MENTION.fullmatch(content), text[at : found.start()]))
        at = found.end()
    return pieces


def _written(child: Token) -> str:
    """Return a part of a block as text, with code spans in backticks."""
    if child.type == "code_inline":
        return f"`{child.content.replace('`', ' ')}`"
    if child.type == "text":
        return child.content.replace("`", " ")
    return " " if child.type in ("softbreak", "hardbreak") else ""


def _pointers(pieces: Sequence[_Piece]) -> Iterator[_Pointer]:
    """Yield every ``path:line`` of a block, except examples such as ``path/to/file.py:1``."""
    for piece, *near in zip(pieces, [None, *pieces], [*pieces[1:], None], strict=False):
        if piece.mention is not None and not _PLACEHOLDER.match(piece.content):
            yield piece.mention, _name_beside(piece, *near)


def _name_beside(piece: _Piece, previous: _Piece | None, following: _Piece | None) -> str:
    """Return the symbol before a ``path:line``, or else behind it; empty if there is none."""
    name = ""
    if previous is not None and piece.before and _BEFORE.fullmatch(piece.before):
        name = _symbol(previous)
    # "`a.py:1`, `name`" is an enumeration; a dash, a colon or a bracket joins the two.
    joint = following.before if following is not None else ""
    if following is not None and not name and _BETWEEN.fullmatch(joint) and _JOINT.search(joint):
        name = _symbol(following)
    return name


def _listed(pieces: Sequence[_Piece]) -> Iterator[tuple[str, str]]:
    """Yield path and symbol for each symbol that follows a path after punctuation."""
    path = ""
    for piece in pieces:
        path = path if _BETWEEN.fullmatch(piece.before) else ""
        if piece.mention is None and _PATH.fullmatch(piece.content):
            path = "" if _PLACEHOLDER.match(piece.content) else piece.content
        elif path and (name := _symbol(piece)):
            yield path, name
        else:
            path = ""


def _symbol(piece: _Piece) -> str:
    name = piece.content
    if piece.mention is not None or len(name) < 3 or name in _CONSTANTS:
        return ""
    return name if _SYMBOL.fullmatch(name) and not _PATH.fullmatch(name) else ""
