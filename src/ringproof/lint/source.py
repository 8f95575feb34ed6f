"""The text files of a skill, and what Markdown has in them: fences, links, code, hidden text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markdown_it.token import Token

from ringproof.findings.finding import Finding
from ringproof.markdown import LINE_END, parse, without_frontmatter

FRONTMATTER = re.compile(r"\A---[ \t]*\r?\n(?P<yaml>(?:.*\n)*?)---[ \t]*(?:\r?\n|\Z)")
_MARKDOWN = (".md", ".mdx", ".markdown")
_MARKUP = (".html", ".htm", ".svg", ".xml")
_COMMENT = re.compile(r"<!--(.*?)(?:-->|\Z)", re.DOTALL)
_HIDDEN = re.compile(
    r"<(?P<tag>\w+)[^>]{0,300}"
    r"(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|\bhidden\b)"
    r"[^>]{0,300}>(.{0,4000}?)(?:</(?P=tag)|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_DEFINITION_COMMENT = re.compile(r"^ {0,3}\[[^\]\n]*\]:\s*(?:#|<>)\s*[\"'(](.*)[\"')]\s*$", re.M)
_INLINE = MappingProxyType(
    {"link_open": "link", "image": "link", "code_inline": "code", "text": "text"}
)


@dataclass(frozen=True)
class DocumentPiece:
    """A piece of a document.

    Attributes:
        kind: ``fence``, ``link``, ``code``, ``text``, ``hidden`` (a comment, or an element that is
            not displayed) or ``remark`` (a comment of the frontmatter).
        text: Content; of a link its target.
        line: Line of its first character, from 1; of a fence its first content line.
    """

    kind: str
    text: str
    line: int
    language: str = ""


@dataclass(frozen=True)
class SourceFile:
    """A text file of a skill.

    Attributes:
        name: Path relative to the skill folder, with slashes.
        shown: Path in findings.
        body: Markdown behind the frontmatter; ``None`` for any other file.
        pieces: Pieces of Markdown, and hidden pieces of other markup.
        blocks: First and last line of each top-level block of Markdown, in order.
    """

    name: str
    shown: str
    text: str
    body: str | None = None
    pieces: tuple[DocumentPiece, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()

    def of(self, *kinds: str) -> Iterator[DocumentPiece]:
        """Yield the pieces of some kinds."""
        return (piece for piece in self.pieces if piece.kind in kinds)

    def finding(self, rule: str, line: int, message: str) -> Finding:
        """Return a finding in this file."""
        return Finding(rule, self.shown, line, message)

    def at(self, rule: str, match: re.Match[str], message: str) -> Finding:
        """Return a finding where a pattern matched the text."""
        return self.finding(rule, self.text.count("\n", 0, match.start()) + 1, message)


def parsed(name: str, shown: str, text: str) -> SourceFile:
    """Parse CommonMark; a frontmatter counts for line numbers, and for its comments."""
    if name.lower().endswith(_MARKUP):
        return SourceFile(name, shown, text, pieces=tuple(_hidden(text, 0)))
    if not name.lower().endswith(_MARKDOWN):
        return SourceFile(name, shown, text)
    head = FRONTMATTER.match(text)
    lines = LINE_END.split(text)
    body = without_frontmatter(lines) if head else lines
    tokens = parse(body)
    remarks = enumerate(head[0].split("\n") if head else (), 1)
    pieces = (
        *_tokens(tokens, body),
        *_definition_comments(tokens, "\n".join(body)),
        *(
            DocumentPiece("remark", line, at)
            for at, line in remarks
            if line.lstrip().startswith("#")
        ),
    )
    outer = (token for token in tokens if token.level == 0 and token.map and token.nesting >= 0)
    blocks = tuple((token.map[0] + 1, token.map[1]) for token in outer if token.map)
    return SourceFile(name, shown, text, text[head.end() :] if head else text, pieces, blocks)


def _tokens(tokens: Sequence[Token], lines: Sequence[str]) -> Iterator[DocumentPiece]:
    for token in tokens:
        if not token.map:
            continue
        first, last = token.map
        if token.type == "fence":
            language = (token.info.split() or [""])[0].lower().strip("{}.")
            yield DocumentPiece("fence", token.content, first + 2, language)
        elif token.type == "html_block":
            yield from _hidden(token.content, first)
        for child in token.children or ():
            targets = {"link_open": child.attrGet("href"), "image": child.attrGet("src")}
            content = str(targets.get(child.type, child.content) or "")
            at = next((n for n in range(first, last) if content[:60] in lines[n]), first)
            if child.type == "html_inline":
                yield from _hidden(content, at)
            elif child.type in _INLINE:
                yield DocumentPiece(_INLINE[child.type], content, at + 1)


def _hidden(html: str, first: int) -> Iterator[DocumentPiece]:
    """Yield comments and invisible elements of HTML that starts on the line ``first``, from 0."""
    for pattern in (_COMMENT, _HIDDEN):
        for match in pattern.finditer(html):
            line = first + 1 + html.count("\n", 0, match.start())
            yield DocumentPiece("hidden", match[pattern.groups], line)


def _definition_comments(tokens: Sequence[Token], body: str) -> Iterator[DocumentPiece]:
    """Yield ``[//]: # (text)``, a link definition that nothing shows; not those inside of code."""
    code = [token.map for token in tokens if token.type in ("fence", "code_block") and token.map]
    for match in _DEFINITION_COMMENT.finditer(body):
        line = body.count("\n", 0, match.start())
        if not any(first <= line < last for first, last in code):
            yield DocumentPiece("hidden", match[1], line + 1)
