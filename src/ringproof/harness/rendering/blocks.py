"""Finds the generated blocks of a document.

A block is the text between ``<!-- ringproof:begin KIND key=value -->`` and ``<!-- ringproof:end
-->``. Each marker must be a comment on its own line at the left margin. Markers in code,
frontmatter, lists and quotes do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markdown_it.token import Token

from ringproof.errors import InputError
from ringproof.harness.markdown import parse, split_lines, without_frontmatter

# `ringproof: ignore` is a comment for the linter and not a marker.
_OURS = re.compile(r"<!--\s*ringproof:(?!\s*ignore)")
_MARKER = re.compile(r"\s*<!--\s*ringproof:(?P<edge>begin|end)(?P<rest>(?:\s[^>]*?)?)\s*-->\s*")
_OPTION = re.compile(
    r"(?P<key>[a-z]+)=(?P<value>[A-Za-z0-9][A-Za-z0-9._/-]*(?:,[A-Za-z0-9][A-Za-z0-9._/-]*)*)"
)

FORM = "`<!-- ringproof:begin KIND key=value -->` or `<!-- ringproof:end -->`"


@dataclass(frozen=True)
class GeneratedBlock:
    """A generated block.

    Attributes:
        options: Values by key, split at commas.
        begin, end: Lines of the two markers, from 0.
    """

    file: str
    kind: str
    options: Mapping[str, tuple[str, ...]]
    begin: int
    end: int

    def refusal(self, value: object, problem: str, remedy: str) -> InputError:
        """Return an error with the line of the block."""
        return InputError(f"{self.file}:{self.begin + 1}", value, problem, remedy)


@dataclass(frozen=True)
class _Marker:
    line: int
    text: str
    nested: bool


def find_blocks(text: str, file: str) -> tuple[GeneratedBlock, ...]:
    """Return the blocks of a document, in order.

    Raises:
        InputError: A marker is malformed, misplaced, nested or without its counterpart, or the text
            cannot be parsed.
    """
    body = without_frontmatter(split_lines(text))
    try:
        tokens = parse(body)
    except ValueError as error:
        raise InputError(file, None, "cannot be parsed as Markdown", "simplify it") from error
    return tuple(_paired(_markers(tokens, body), file))


def _markers(tokens: Sequence[Token], lines: Sequence[str]) -> Iterator[_Marker]:
    for token in tokens:
        first, behind = token.map or (0, 0)
        if token.type == "html_block":
            inside = range(first, min(behind, len(lines)))
            ours = [line for line in inside if _OURS.search(lines[line])]
            yield from (_Marker(line, lines[line], token.level > 0) for line in ours)
        for child in token.children or ():
            if child.type == "html_inline" and _OURS.match(child.content):
                at = next((n for n in range(first, behind) if child.content in lines[n]), first)
                yield _Marker(at, lines[at], True)


def _paired(markers: Iterator[_Marker], file: str) -> Iterator[GeneratedBlock]:
    opened: tuple[int, str, Mapping[str, tuple[str, ...]]] | None = None
    for marker in markers:
        where = f"{file}:{marker.line + 1}"
        match = _MARKER.fullmatch(marker.text)
        if match is None or marker.nested:
            raise _misplaced(marker, where, known=match is not None)
        if match["edge"] == "begin":
            if opened is not None:
                problem = f"begins inside the block of line {opened[0] + 1}"
                raise InputError(where, None, problem, "end that one first")
            opened = (marker.line, *_content(match["rest"], where))
        elif match["rest"].strip():
            problem, remedy = "the end takes no words", "write `<!-- ringproof:end -->`"
            raise InputError(where, match["rest"].strip(), problem, remedy)
        elif opened is None:
            remedy = "remove it, or write its beginning"
            raise InputError(where, None, "ends a block that nothing began", remedy)
        else:
            yield GeneratedBlock(file, opened[1], opened[2], opened[0], marker.line)
            opened = None
    if opened is not None:
        remedy = "write `<!-- ringproof:end -->` behind it"
        raise InputError(f"{file}:{opened[0] + 1}", None, "begins a block without an end", remedy)


def _misplaced(marker: _Marker, where: str, *, known: bool) -> InputError:
    text = marker.text.strip()
    alone = text.startswith("<!--") and text.endswith("-->") and text.count("<!--") == 1
    if known or (marker.nested and alone):
        problem, remedy = "a marker inside of a list, quote or text", "move it to the left margin"
    elif not alone:
        problem, remedy = "a marker that shares its line", "give it a line of its own"
    else:
        problem, remedy = "is not a marker", f"write {FORM}"
    return InputError(where, text, problem, remedy)


def _content(rest: str, where: str) -> tuple[str, Mapping[str, tuple[str, ...]]]:
    words = rest.split()
    if not words or "=" in words[0]:
        raise InputError(where, rest.strip() or None, "names no KIND", f"write {FORM}")
    options: dict[str, tuple[str, ...]] = {}
    for word in words[1:]:
        match = _OPTION.fullmatch(word)
        if match is None:
            raise InputError(where, word, "is not key=value", "write it like only=one,two")
        if match["key"] in options:
            raise InputError(where, match["key"], "is given twice", "give each key once")
        options[match["key"]] = tuple(match["value"].split(","))
    return words[0], MappingProxyType(options)
