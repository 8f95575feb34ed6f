"""Finds mentions of code in Markdown: fences, ``path:line``, and symbols listed after a path.

markdown-it says where the blocks of a document are; inside a block, the text is read as written, so
that the position of every number is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from markdown_it.token import Token

from ringproof.errors import InputError
from ringproof.markdown import LINE_END, parse, split_lines, without_frontmatter

Kind = Literal["fence", "inline", "symbol"]

MAX_DOCUMENT_BYTES = 1_000_000
MAX_MENTIONS = 1_000
MAX_LINE_CHARACTERS = 20_000

_INFO = re.compile(r"(\d{1,9}):(\d{1,9}):(\S.*)")
_OPENING = re.compile(r"(?:`{3,}|~{3,})[ \t]*(\d{1,9}):(\d{1,9}):")
_SUFFIXES = (
    "py|pyi|pyx|c|cc|cpp|cxx|cu|cuh|h|hh|hpp|rs|go|java|kt|js|jsx|ts|tsx|rb|swift|sh|bash|"
    "md|rst|txt|toml|ya?ml|json|cfg|ini|cmake|proto|sql|j2|lock|ipynb|html|css|xml|csv|mk"
)
_FILE = rf"(?:\.{{0,2}}/)?(?:[\w.@+-]+/)*[\w.@+-]*\w\.(?:{_SUFFIXES})"
_LINES = r":L?(\d{1,9})(?:[-–]L?(\d{1,9}))?"  # noqa: RUF001, an en dash is what people write
_PATH = re.compile(_FILE)
_MENTION = re.compile(rf"({_FILE}){_LINES}")
_PIECE = re.compile(
    rf"(?P<ticks>`+)(?P<code>.{{1,200}}?)(?P=ticks)(?!`)|(?<![\w./:@+-]){_FILE}{_LINES}(?![\w:]|[.,-]\d)",
    re.DOTALL,
)
# Targets of links, and HTML, in which nothing is a mention; and code spans, which stay. Their
# length is limited so that a document of many single backticks is read in linear time.
_HIDDEN = re.compile(r"\\`|(`+).{1,200}?\1(?!`)|\]\([^()]*\)|<[^<>`]*>", re.DOTALL)
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

Span = tuple[int, int]
"""Position of a number in a document: ``text[start:end]`` are its digits."""


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
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class _Piece:
    """A code span, or a ``path:line`` in text.

    Attributes:
        at: Position of the content in the document.
        before: Text between the previous piece and this one.
    """

    content: str
    at: int
    before: str

    @property
    def mention(self) -> re.Match[str] | None:
        """The groups of a ``path:line``, except examples such as ``path/to/file.py:1``."""
        return None if self.is_example else _MENTION.fullmatch(self.content)

    @property
    def is_example(self) -> bool:
        return _PLACEHOLDER.match(self.content) is not None

    @property
    def is_path(self) -> bool:
        return _PATH.fullmatch(self.content) is not None

    @property
    def symbol(self) -> str:
        """The content, if it can be the name of something in code."""
        name = self.content
        is_name = _SYMBOL.fullmatch(name) and not self.is_path and name not in _CONSTANTS
        return name if is_name and len(name) > 2 else ""


def decoded_document(data: bytes, file: str) -> str:
    """Return the text of a document.

    Raises:
        InputError: It is too large, binary or not UTF-8.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise _refusal(file, f"is too large for a document of a skill ({len(data):,} bytes)")
    if b"\0" in data:
        raise _refusal(file, "is a binary file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(file, "is not UTF-8") from error


def find_mentions(text: str, file: str) -> tuple[Mention, ...]:
    """Return all mentions of a document, in order.

    YAML frontmatter, HTML, and code blocks other than ``start:end:path`` fences are ignored.

    Raises:
        InputError: A line is too long, or there are more than ``MAX_MENTIONS``.
    """
    starts = [0, *(match.end() for match in LINE_END.finditer(text)), len(text)]
    if any(behind - start > MAX_LINE_CHARACTERS for start, behind in pairwise(starts)):
        raise _refusal(file, f"has a line of more than {MAX_LINE_CHARACTERS:,} characters")
    try:
        tokens = parse(without_frontmatter(split_lines(text)))
    except ValueError as error:
        raise _refusal(file, "cannot be parsed as Markdown") from error
    found: list[Mention] = []
    for mention in _mentions(tokens, text, starts):
        found.append(mention)
        if len(found) > MAX_MENTIONS:
            raise _refusal(file, f"has more than {MAX_MENTIONS:,} mentions of code")
    return tuple(found)


def _refusal(file: str, problem: str) -> InputError:
    return InputError(file, f"{problem}; leave it out of PATH")


def _mentions(tokens: Sequence[Token], text: str, starts: Sequence[int]) -> Iterator[Mention]:
    lists, in_row = 0, False
    for token in tokens:
        lists += (token.type == "list_item_open") - (token.type == "list_item_close")
        in_row = token.type == "tr_open" or (in_row and token.type != "tr_close")
        if token.map is None:
            continue
        first, behind = token.map[0], min(token.map[1], len(starts) - 1)
        if token.type == "fence":
            yield from _fence(token, text, (starts[first], starts[first + 1]), first + 1)
        elif token.type == "tr_open" or (token.type == "inline" and not in_row):
            pieces = _pieces(text[starts[first] : starts[behind]], starts[first])
            for piece, match, name in _pointers(pieces):
                line = first + 1 + len(LINE_END.findall(text, starts[first], piece.at))
                groups = [group for group in (2, 3) if match[group] is not None]
                spans = tuple(
                    (piece.at + match.start(group), piece.at + match.end(group)) for group in groups
                )
                start, end = int(match[2]), int(match[groups[-1]])
                yield Mention("inline", match[1], start, end, line, name, spans)
            for path, symbol in _listed(pieces) if in_row or lists else ():
                yield Mention("symbol", path, None, None, first + 1, (symbol,))


def _fence(token: Token, text: str, opened: Span, line: int) -> Iterator[Mention]:
    info, opening = _INFO.fullmatch(token.info.strip()), _OPENING.search(text, *opened)
    if info is None or opening is None or opening.group(1, 2) != info.group(1, 2):
        return  # not of this form, or the numbers are written as entities
    quote = tuple(token.content.split("\n"))
    spans = (opening.span(1), opening.span(2))
    yield Mention("fence", info[3].strip(), int(info[1]), int(info[2]), line, quote, spans)


def _pieces(block: str, start: int) -> list[_Piece]:
    """Find the code spans and mentions of one block: a paragraph, a heading, or a table row."""
    plain = _HIDDEN.sub(lambda found: found[0] if found[1] else " " * len(found[0]), block)
    pieces, at = [], 0
    for found in _PIECE.finditer(plain):
        content, group = (found["code"], "code") if found["ticks"] else (found[0], 0)
        begin = found.start(group) + len(content) - len(content.lstrip())
        pieces.append(_Piece(content.strip(), start + begin, plain[at : found.start()]))
        at = found.end()
    return pieces


def _pointers(
    pieces: Sequence[_Piece],
) -> Iterator[tuple[_Piece, re.Match[str], tuple[str, ...]]]:
    """Yield every ``path:line`` of a block, its groups, and the name beside it if there is one."""
    for piece, *near in zip(pieces, [None, *pieces], [*pieces[1:], None], strict=False):
        match = piece.mention
        if match is not None:
            name = _name_beside(piece, *near)
            yield piece, match, (name,) if name else ()


def _name_beside(piece: _Piece, previous: _Piece | None, following: _Piece | None) -> str:
    """Return the symbol before a ``path:line``, or else behind it; empty if there is none."""
    is_joined = piece.before and _BEFORE.fullmatch(piece.before)
    if previous is not None and is_joined and previous.symbol:
        return previous.symbol
    # "`a.py:1`, `name`" is an enumeration; a dash, a colon or a bracket joins the two.
    joint = following.before if following is not None else ""
    if following is not None and _BETWEEN.fullmatch(joint) and _JOINT.search(joint):
        return following.symbol
    return ""


def _listed(pieces: Sequence[_Piece]) -> Iterator[tuple[str, str]]:
    """Yield path and symbol for each symbol that follows a path after punctuation."""
    path = ""
    for piece in pieces:
        path = path if _BETWEEN.fullmatch(piece.before) else ""
        if piece.is_path:
            path = "" if piece.is_example else piece.content
        elif path and piece.symbol:
            yield path, piece.symbol
        else:
            path = ""
