"""The text files of a skill, and what Markdown has in them: fences, links, code, hidden text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markdown_it.token import Token

from ringproof.findings.finding import Finding
from ringproof.lint.hidden import comments, definitions, elements, far_right, prose_of
from ringproof.markdown import LINE_END, parse, without_frontmatter

FRONTMATTER = re.compile(r"\A---[ \t]*\r?\n(?P<yaml>(?:.*\n)*?)---[ \t]*(?:\r?\n|\Z)")
_MARKDOWN = (".md", ".mdx", ".markdown")
_MARKUP = (".html", ".htm", ".svg", ".xml")
_INLINE = MappingProxyType(
    {"link_open": "link", "image": "link", "code_inline": "code", "text": "text"}
)


@dataclass(frozen=True)
class DocumentPiece:
    """A piece of a document.

    Attributes:
        kind: ``fence``, ``link``, ``code``, ``text``, ``hidden`` (text that is not displayed) or
            ``remark`` (a comment of the frontmatter).
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
        prose: Markdown outside of code, each line at its place, and the frontmatter.
        blocks: First and last line of each top-level block of Markdown, in order.
    """

    name: str
    shown: str
    text: str
    body: str | None = None
    pieces: tuple[DocumentPiece, ...] = ()
    prose: str = ""
    blocks: tuple[tuple[int, int], ...] = ()

    def of(self, *kinds: str) -> Iterator[DocumentPiece]:
        """Yield the pieces of some kinds."""
        return (piece for piece in self.pieces if piece.kind in kinds)

    def finding(self, rule: str, line: int, message: str) -> Finding:
        """Return a finding in this file."""
        return Finding(rule, self.shown, line, message)


def parsed(name: str, shown: str, text: str) -> SourceFile:
    """Parse CommonMark; a frontmatter counts for line numbers, and for its comments."""
    if name.lower().endswith(_MARKUP):
        return SourceFile(name, shown, text, pieces=tuple(_pieces_of_markup(text)))
    if not name.lower().endswith(_MARKDOWN):
        return SourceFile(name, shown, text)
    head = FRONTMATTER.match(text)
    lines = LINE_END.split(text)
    body = without_frontmatter(lines) if head else lines
    tokens = parse(body)
    above = head[0].split("\n") if head else []
    remarks = enumerate(above, 1)
    prose = prose_of(tokens, above[: len(lines)], len(lines))
    unseen = (
        *elements(prose, is_markdown=True),
        *far_right(prose),
        *definitions(tokens, "\n".join(body)),
    )
    pieces = (
        *_tokens(tokens, body),
        *(DocumentPiece("hidden", said, at) for at, said in unseen),
        *(
            DocumentPiece("remark", line, at)
            for at, line in remarks
            if line.lstrip().startswith("#")
        ),
    )
    outer = (token for token in tokens if token.level == 0 and token.map and token.nesting >= 0)
    blocks = tuple((token.map[0] + 1, token.map[1]) for token in outer if token.map)
    rest = text[head.end() :] if head else text
    return SourceFile(name, shown, text, rest, pieces, prose, blocks)


def _pieces_of_markup(text: str) -> Iterator[DocumentPiece]:
    for at, said in (*comments(text, 0), *elements(text, is_markdown=False)):
        yield DocumentPiece("hidden", said, at)


def _tokens(tokens: Sequence[Token], lines: Sequence[str]) -> Iterator[DocumentPiece]:
    for token in tokens:
        if not token.map:
            continue
        first, last = token.map
        if token.type == "fence":
            language = (token.info.split() or [""])[0].lower().strip("{}.")
            yield DocumentPiece("fence", token.content, first + 2, language)
        elif token.type == "html_block":
            for at, said in comments(token.content, first):
                yield DocumentPiece("hidden", said, at)
        for child in token.children or ():
            targets = {"link_open": child.attrGet("href"), "image": child.attrGet("src")}
            content = str(targets.get(child.type, child.content) or "")
            at = next((n for n in range(first, last) if content[:60] in lines[n]), first)
            yield from _unseen(child, content, at)
            if child.type in _INLINE:
                yield DocumentPiece(_INLINE[child.type], content, at + 1)


def _unseen(child: Token, content: str, at: int) -> Iterator[DocumentPiece]:
    """Yield what an inline token on the line ``at``, from 0, has and does not show."""
    for said in (child.attrGet("title"), child.content if child.type == "image" else ""):
        if said:
            yield DocumentPiece("hidden", str(said), at + 1)
    if child.type == "html_inline":
        for where, comment in comments(content, at):
            yield DocumentPiece("hidden", comment, where)
