"""Markdown as the linter needs it: fences, links, code spans, hidden text, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it.token import Token

from ringproof.harness.markdown import LINE_END, parse, without_frontmatter

FRONTMATTER = re.compile(r"\A---[ \t]*\r?\n(?P<yaml>(?:.*\n)*?)---[ \t]*(?:\r?\n|\Z)")
_COMMENT = re.compile(r"<!--(.*?)(?:-->|\Z)", re.DOTALL)
_HIDDEN = re.compile(
    r"<(\w+)[^>]{0,300}(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|\bhidden\b)"
    r"[^>]{0,300}>(.{0,4000}?)(?:</\1|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_DEFINITION_COMMENT = re.compile(r"^ {0,3}\[[^\]\n]*\]:\s*(?:#|<>)\s*[\"'(](.*)[\"')]\s*$", re.M)


@dataclass(frozen=True)
class Piece:
    """A piece of a document.

    Attributes:
        text: A link's target, a code span, a comment's content, a fence's content, plain text.
        line: 1-based line of its first character (of a fence: of its first content line).
    """

    text: str
    line: int
    language: str = ""
    end: int = 0


@dataclass(frozen=True)
class Markdown:
    """A parsed document; line numbers count from the start of the file.

    Attributes:
        blocks: First and last line of each top-level block, in order.
    """

    body: str
    fences: tuple[Piece, ...]
    links: tuple[Piece, ...]
    codes: tuple[Piece, ...]
    prose: tuple[Piece, ...]
    hidden: tuple[Piece, ...]
    blocks: tuple[tuple[int, int], ...]


def parse_markdown(text: str) -> Markdown:
    """Parse CommonMark; a frontmatter counts for line numbers and for nothing else."""
    head = FRONTMATTER.match(text)
    lines = LINE_END.split(text)
    body = without_frontmatter(lines) if head else lines
    tokens = parse(body)
    inlines = tuple(_inline_pieces(tokens, body))
    hidden = [piece for kind, piece in inlines if kind == "hidden"]
    return Markdown(
        body=text[head.end() :] if head else text,
        fences=tuple(_fences(tokens)),
        links=tuple(piece for kind, piece in inlines if kind == "link"),
        codes=tuple(piece for kind, piece in inlines if kind == "code"),
        prose=tuple(piece for kind, piece in inlines if kind == "text"),
        hidden=(*hidden, *_definition_comments(tokens, "\n".join(body))),
        blocks=tuple(
            (token.map[0] + 1, token.map[1])
            for token in tokens
            if token.level == 0 and token.map and token.nesting >= 0
        ),
    )


def _fences(tokens: list[Token]) -> Iterator[Piece]:
    for token in tokens:
        if token.type == "fence" and token.map:
            info = token.info.strip().split()
            language = info[0].lower().strip("{}.") if info else ""
            yield Piece(token.content, token.map[0] + 2, language, token.map[1])


def _inline_pieces(tokens: list[Token], lines: list[str]) -> Iterator[tuple[str, Piece]]:
    for token in tokens:
        if not token.map:
            continue
        first, last = token.map
        if token.type == "html_block":
            yield from (("hidden", piece) for piece in hidden_pieces(token.content, first))
        for child in token.children or ():
            found = _kind(child)
            if found is None:
                continue
            kind, content = found
            at = next((n for n in range(first, last) if content[:60] in lines[n]), first)
            if kind == "html":
                yield from (("hidden", piece) for piece in hidden_pieces(content, at))
            else:
                yield kind, Piece(content, at + 1)


def _kind(token: Token) -> tuple[str, str] | None:
    if token.type == "link_open":
        return "link", str(token.attrGet("href") or "")
    if token.type == "image":
        return "link", str(token.attrGet("src") or "")
    names = {"code_inline": "code", "text": "text", "html_inline": "html"}
    kind = names.get(token.type)
    return None if kind is None else (kind, token.content)


def hidden_pieces(html: str, first: int) -> Iterator[Piece]:
    """Comments and invisible elements in HTML that starts on the 0-based line ``first``."""
    for pattern, group in ((_COMMENT, 1), (_HIDDEN, 2)):
        for match in pattern.finditer(html):
            line = first + 1 + html.count("\n", 0, match.start())
            yield Piece(match[group], line, end=line + match[0].count("\n"))


def _definition_comments(tokens: list[Token], body: str) -> Iterator[Piece]:
    """``[//]: # (text)``: a link definition that nothing shows; not those inside of code."""
    code = [token.map for token in tokens if token.type in ("fence", "code_block") and token.map]
    for match in _DEFINITION_COMMENT.finditer(body):
        line = body.count("\n", 0, match.start())
        if not any(first <= line < last for first, last in code):
            yield Piece(match[1], line + 1, end=line + 1)
