"""Finds mentions of code in a Markdown document, with the positions of their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it.token import Token

from ringproof.errors import InputError
from ringproof.harness.fences.inline import Pointer, listed, pieces, pointers
from ringproof.harness.fences.model import ByteSpan, Mention
from ringproof.harness.markdown import parse, split_lines, without_frontmatter

MAX_DOCUMENT_BYTES = 1_000_000
MAX_MENTIONS = 1_000
MAX_LINE_CHARACTERS = 20_000

_INFO = re.compile(r"(\d{1,9}):(\d{1,9}):(\S.*)")
_OPENING = re.compile(rb"(?:`{3,}|~{3,})[ \t]*(\d{1,9}):(\d{1,9}):")
_LINE_END = re.compile(rb"\r\n?|\n")


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
    starts = _line_starts(data)
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


def _line_starts(data: bytes) -> list[int]:
    """Return the offset of each line, and the offset after the last."""
    return [0, *(match.end() for match in _LINE_END.finditer(data)), len(data)]


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
    block = pieces(tokens)
    found = list(pointers(block))
    low, high = starts[first], starts[min(behind, len(starts) - 1)]
    for pointer, at in _located(found, data, low, high):
        spans = tuple(ByteSpan(at + begin, at + end) for begin, end in _in_bytes(pointer))
        line = first + len(_LINE_END.findall(data, low, at)) + 1
        quote = (pointer.name,) if pointer.name else ()
        yield Mention("inline", pointer.path, pointer.start, pointer.end, line, quote, spans)
    for path, name in listed(block) if is_list else ():
        yield Mention("symbol", path, None, None, first + 1, (name,))


def _in_bytes(pointer: Pointer) -> Iterator[tuple[int, int]]:
    for begin, end in pointer.numbers:
        yield len(pointer.literal[:begin].encode()), len(pointer.literal[:end].encode())


def _located(
    found: Sequence[Pointer], data: bytes, low: int, high: int
) -> Iterator[tuple[Pointer, int]]:
    """Yield each pointer with its offset in the document.

    Pointers with escapes, or whose text also occurs elsewhere (in the target of a link), are left
    out, since a correction could change the wrong one.
    """
    for literal in dict.fromkeys(pointer.literal for pointer in found):
        same = [pointer for pointer in found if pointer.literal == literal]
        # Word characters and "/" around it belong to another mention.
        pattern = re.compile(rb"(?<![\w/.])" + re.escape(literal.encode()) + rb"(?![\w]|-\d)")
        places = [match.start() for match in pattern.finditer(data, low, high)]
        if len(places) == len(same):
            yield from zip(same, places, strict=True)
