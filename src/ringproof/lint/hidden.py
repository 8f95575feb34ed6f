"""Finds text of Markdown and HTML that a reader of the rendered page does not see."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it.token import Token

Hidden = tuple[int, str]
"""The line of a hidden text, from 1, and the text."""

_COMMENT = re.compile(r"<!--(.*?)(?:-->|\Z)", re.DOTALL)
_ATTRIBUTES = r"[^<>\"']{0,300}(?:(?:\"[^\"]{0,1000}\"|'[^']{0,1000}')[^<>\"']{0,300}){0,20}"
_TAG = re.compile(rf"<([a-z][\w-]*)((?:\s{_ATTRIBUTES})?)/?>", re.IGNORECASE)
_NEVER_SHOWN = frozenset(("template", "script", "style", "noscript", "title", "object"))
_UNIT = r"(?:px|pt|r?em|%)?\s*(?:[;\"']|$)"
_STYLE = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|(?<![\w-])hidden\b"
    rf"|font-size\s*:\s*(?:0(?:\.0\d*)?{_UNIT}|[0-3](?:\.\d+)?p[xt])"
    r"|(?<![\w-])opacity\s*:\s*(?:0?\.0\d*|0)(?![.\d])"
    r"|(?<![\w-])color\s*[:=]\s*[\"']?\s*(?:white|transparent|#fff(?:fff)?)\b"
    r"|(?<![\w-])color\s*:\s*rgba?\(\s*(?:255\s*,\s*255\s*,\s*255|[^)]{0,40},\s*0?\.?0+\s*)\s*\)"
    r"|(?:left|right|top|bottom|text-indent|margin(?:-\w+)?)\s*:\s*-\d{3,}"
    rf"|(?<![\w-])(?:max-)?(?:height|width)\s*:\s*[01]{_UNIT}"
    r"|clip(?:-path)?\s*:\s*(?:rect|inset|circle|polygon)\(|transform\s*:\s*scale\(\s*0",
    re.IGNORECASE,
)
_TEXT_ATTRIBUTE = re.compile(
    r"(?<![\w-])(?:alt|title|value|content|placeholder|summary|aria-\w+|data-[\w-]+)\s*=\s*"
    r"(?:\"([^\"]*)\"|'([^']*)')",
    re.IGNORECASE,
)
_LONGEST = 4_000
_FAR_RIGHT = re.compile(r"\S[ \t\u00a0]{100,}(\S.*)")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]\n]*\]:\s*\S+\s+[\"'(](.*)[\"')]\s*$", re.M)
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.{1,2000}?)(?<!`)\1(?!`)", re.DOTALL)


def prose_of(tokens: Sequence[Token], head: Sequence[str], lines: int) -> str:
    """Return the text outside of code, each line at its place, behind the frontmatter's lines."""
    rows = [*head, *[""] * (lines - len(head))]
    for token in tokens:
        if token.map and token.type in ("inline", "html_block"):
            text = token.content
            if token.type == "inline":
                text = _SPAN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
            for at, row in enumerate(text.split("\n")[: lines - token.map[0]], token.map[0]):
                rows[at] = f"{rows[at]} {row}" if rows[at] else row
    return "\n".join(rows)


def comments(html: str, first: int) -> Iterator[Hidden]:
    """Yield the comments of HTML that starts on the line ``first``, from 0."""
    for match in _COMMENT.finditer(html):
        yield first + 1 + html.count("\n", 0, match.start()), match[1]


def elements(html: str, *, is_markdown: bool) -> Iterator[Hidden]:
    """Yield what invisible elements hold, and the attributes that are text.

    Args:
        is_markdown: Also the elements in which a page has its code, such as ``<script>``.
    """
    line, counted, hidden = 1, 0, 0
    for match in _TAG.finditer(html):
        tag = match[1].lower()
        line += html.count("\n", counted, match.start())
        counted = match.start()
        for double, single in _TEXT_ATTRIBUTE.findall(match[2]):
            yield line, double or single
        unseen = _STYLE.search(match[2]) or (is_markdown and tag in _NEVER_SHOWN)
        if unseen and match.end() > hidden:  # else it is inside the one before
            hidden = _end(html, tag, match.end())
            yield line, html[match.end() : hidden]


def _end(html: str, tag: str, start: int) -> int:
    """Return where an element ends, whose elements of the same kind are inside of it."""
    near = html[start : start + _LONGEST].lower()
    at = near.find(f"</{tag}")
    for _ in range(8):
        if at < 0 or near.count(f"<{tag}", 0, at) <= near.count(f"</{tag}", 0, at):
            break
        at = near.find(f"</{tag}", at + 1)
    return start + (at if at >= 0 else len(near))


def far_right(prose: str) -> Iterator[Hidden]:
    """Yield text behind so many blanks that an editor does not show it."""
    for match in _FAR_RIGHT.finditer(prose):
        yield prose.count("\n", 0, match.start()) + 1, match[1]


def definitions(tokens: Sequence[Token], body: str) -> Iterator[Hidden]:
    """Yield the titles of link definitions, ``[//]: # (text)`` among them; not those in code."""
    code = [token.map for token in tokens if token.type in ("fence", "code_block") and token.map]
    for match in _DEFINITION.finditer(body):
        line = body.count("\n", 0, match.start())
        if not any(first <= line < last for first, last in code):
            yield line + 1, match[1]
