"""Finds the generated blocks of a document, and reads their options.

A block is the text between ``<!-- ringproof:begin KIND key=value -->`` and ``<!-- ringproof:end
-->``. Each marker must be a comment on its own line at the left margin. Markers in code,
frontmatter, lists and quotes do not count.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from markdown_it.token import Token

from ringproof.errors import InputError, shown
from ringproof.markdown import parse, split_lines, without_frontmatter

# `ringproof: ignore` is a comment for the linter and not a marker.
_OURS = re.compile(r"<!--\s*ringproof:(?!\s*ignore)")
_MARKER = re.compile(r"\s*<!--\s*ringproof:(?P<edge>begin|end)(?P<rest>(?:\s[^>]*?)?)\s*-->\s*")
_OPTION = re.compile(
    r"(?P<key>[a-z]+)=(?P<value>[A-Za-z0-9][A-Za-z0-9._/-]*(?:,[A-Za-z0-9][A-Za-z0-9._/-]*)*)"
)

_FORM = "`<!-- ringproof:begin KIND key=value -->` or `<!-- ringproof:end -->`"
_SHOWN = 12

Item = TypeVar("Item")


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

    def refusal(self, sentence: str) -> InputError:
        """Return an error with the line of the block."""
        return InputError(f"{self.file}:{self.begin + 1}", sentence)

    def values(self, key: str) -> tuple[str, ...]:
        """Return the values of a key; empty if it is not given."""
        return self.options.get(key, ())

    def check(self, word: str, choices: Sequence[str], what: str) -> None:
        """Raise `InputError` for a word that is not one of the choices."""
        if word not in choices:
            raise self.refusal(f"{shown(word)} is not a {what}; {nearest(word, choices)}")

    def refuse_others(self, keys: Sequence[str]) -> None:
        """Raise `InputError` for a key that this kind of block does not have."""
        for key in self.options:
            self.check(key, keys, f"key of {self.kind}")

    def one_of(self, key: str, choices: Sequence[str]) -> str:
        """Return the value of a key that takes one of some words; the first by default."""
        given = ",".join(self.values(key)) or choices[0]
        self.check(given, choices, f"{key} of {self.kind}")
        return given

    def known(self, key: str, choices: Sequence[str], what: str) -> tuple[str, ...]:
        """Return the values of a key, each of which must be known and unique."""
        given = self.values(key)
        for index, value in enumerate(given):
            self.check(value, choices, f"known {what}")
            if value in given[:index]:
                raise self.refusal(f"{key} names {shown(value)} twice; name it once")
        return given

    def selected(self, items: Mapping[str, Item], what: str) -> tuple[Item, ...]:
        """Return the items of ``only`` in its order, or all except those of ``except``.

        Raises:
            InputError: An id is unknown, both keys are given, or nothing is left.
        """
        only = self.known("only", tuple(items), what)
        left_out = self.known("except", tuple(items), what)
        if only and left_out:
            raise self.refusal("the block has both only and except; give one of them")
        names = only or tuple(name for name in items if name not in left_out)
        if not names:
            remedy = "remove the block, or add one to the card"
            raise self.refusal(f"the block has no {what} to show; {remedy}")
        return tuple(items[name] for name in names)


def nearest(value: str, choices: Sequence[str]) -> str:
    """Return a remedy for a word that is not one of the choices."""
    near = difflib.get_close_matches(value, choices, n=1)
    if near:
        return f"did you mean `{near[0]}`?"
    listed = ", ".join(choices[:_SHOWN])
    more = f" and {len(choices) - _SHOWN} more" if len(choices) > _SHOWN else ""
    return f"choose from: {listed}{more}" if choices else "the card has none"


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
        raise InputError(file, "the file cannot be parsed as Markdown; simplify it") from error
    return tuple(_paired(_markers(tokens, body), file))


def named(block: GeneratedBlock, names: Mapping[str, str]) -> GeneratedBlock:
    """Return the block that a name of the card stands for; others are returned as they are.

    Raises:
        InputError: The block has options beside the name, or the card's text is not ``KIND
            key=value``.
    """
    if block.kind not in names:
        return block
    block.refuse_others(())
    kind, options = _content(names[block.kind], f"{block.file}:{block.begin + 1}")
    return replace(block, kind=kind, options=options)


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
    opened: tuple[str, Mapping[str, tuple[str, ...]], int] | None = None
    for marker in markers:
        where = f"{file}:{marker.line + 1}"
        match = _MARKER.fullmatch(marker.text)
        if match is None or marker.nested:
            raise _misplaced(marker, where, known=match is not None)
        if match["edge"] == "begin":
            if opened is not None:
                inside = f"inside the block of line {opened[2] + 1}"
                raise InputError(where, f"this block begins {inside}; end that one first")
            opened = (*_content(match["rest"], where), marker.line)
        elif match["rest"].strip():
            words = shown(match["rest"].strip())
            raise InputError(where, f"remove {words}: write `<!-- ringproof:end -->`")
        elif opened is None:
            remedy = "remove it, or write its beginning"
            raise InputError(where, f"this marker ends a block that nothing began; {remedy}")
        else:
            yield GeneratedBlock(file, *opened, marker.line)
            opened = None
    if opened is not None:
        remedy = "write `<!-- ringproof:end -->` after it"
        raise InputError(f"{file}:{opened[2] + 1}", f"this block has no end; {remedy}")


def _misplaced(marker: _Marker, where: str, *, known: bool) -> InputError:
    text = marker.text.strip()
    alone = text.startswith("<!--") and text.endswith("-->") and text.count("<!--") == 1
    if known or (marker.nested and alone):
        problem = "is inside of a list, quote or text; move it to the left margin"
    elif not alone:
        problem = "shares its line with other text; give the marker a line of its own"
    else:
        problem = f"is not a marker; write {_FORM}"
    return InputError(where, f"{shown(text)} {problem}")


def _content(rest: str, where: str) -> tuple[str, Mapping[str, tuple[str, ...]]]:
    words = rest.split()
    if not words or "=" in words[0]:
        raise InputError(where, f"the marker names no KIND; write {_FORM}")
    options: dict[str, tuple[str, ...]] = {}
    for word in words[1:]:
        match = _OPTION.fullmatch(word)
        if match is None:
            raise InputError(where, f"{shown(word)} is not key=value; write it like only=one,two")
        if match["key"] in options:
            raise InputError(where, f"{match['key']} is given twice; give each key once")
        options[match["key"]] = tuple(match["value"].split(","))
    return words[0], MappingProxyType(options)
