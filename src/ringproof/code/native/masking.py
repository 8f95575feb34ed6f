"""Blanks the parts of a C++ or CUDA file that the grammar cannot read, and keeps all offsets.

Comments, preprocessor lines, and macros between ``struct`` and a name are always blanked. All
branches of ``#if`` are kept, with two exceptions: ``#if 0``, and the other branches after one that
begins a bracket or declaration without ending it. Only in a file that still does not parse,
function bodies and initializers are found by matching brackets and blanked, and then the macros
around declarations. Symbols need none of these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringproof.code.native.tokens import Token, tokens

MAX_HEAD_TOKENS = 4_000
"""A declaration with more tokens outside of braces is blanked as a whole."""

_TYPES = ("class", "struct", "union", "enum")
_BEFORE_BODY = (")", "const", "noexcept", "override", "final", "try", "&", "&&")
_KEYWORDS = (
    "alignas|auto|bool|char|class|concept|const|constexpr|decltype|double|enum|explicit|extern|"
    "final|float|friend|inline|int|long|mutable|namespace|noexcept|operator|override|private|"
    "protected|public|requires|short|signed|static|struct|template|thread_local|try|typedef|"
    "typename|union|unsigned|using|virtual|void|volatile"
)
_NAME = rf"(?!__|(?:{_KEYWORDS})\b)[A-Za-z]\w*"
_ARGUMENTS = r"\s*\([^()]*\)"
# A call on a line of its own stands for a declaration.
_MACRO = rf"[A-Z][A-Z0-9_]+(?:{_ARGUMENTS}(?![ \t]*\n))?"
_NOT_TYPES = (
    "const|volatile|operator|noexcept|override|final|template|namespace|class|struct|union|enum|"
    "using|typedef|extern"
)
_TYPE = rf"(?!(?:{_NOT_TYPES})\b)[A-Za-z_]\w*"
# The grammar reads `struct API Name {` as a function.
_TYPE_MACRO = rf"\b(?:class|struct|union)\s+(?P<macro>{_MACRO})\s+(?={_TYPE}\s*(?:final\s*)?[:{{])"
_MACROS = (
    rf"\b(?P<macro>{_MACRO}|{_NAME})\s+(?={_TYPE}[\s*&]+~?[A-Za-z_])",  # API void name
    rf"\b(?P<macro>{_MACRO})\s+(?={_TYPE}\s*(?:::|<))",  # API std::size_t name
    # name() API {
    rf"\b(?!{_MACRO}){_NAME}{_ARGUMENTS}\s*(?P<macro>{_NAME}(?:{_ARGUMENTS})?)(?=\s*{{)",
    r"(?P<macro><[^<>(){};]*>)(?=>)",  # not a macro: the grammar takes `>>` for a shift
)


@dataclass
class _Head:
    """A declaration up to its body, as far as it tells what a brace opens.

    Attributes:
        start: Offset of its first token.
        length: Number of its tokens outside of braces.
        brackets: Open brackets.
        angles: Open angle brackets of ``template <...>``.
        word: The last keyword of a scope, or ``=``, outside of both.
    """

    start: int
    length: int = 0
    brackets: int = 0
    angles: int = 0
    word: str = ""

    def add(self, token: Token, before: Token) -> None:
        """Take in the next token."""
        text = token.text
        self.length += 1
        if text in ("(", "[", ")", "]"):
            self.brackets = max(0, self.brackets + (text in "([") - (text in ")]"))
        elif not self.brackets and (self.angles or before.text == "template"):
            self.angles += (text == "<") - (text == ">")
        elif not self.brackets and text in ("=", "namespace", *_TYPES):
            self.word = text

    def opens_scope(self, before: Token) -> bool:
        """Return whether a brace after these tokens opens a namespace, a type or ``extern "C"``."""
        is_scope = self.word not in ("", "=") or before.kind == "string"
        return is_scope and not self.brackets and not self.angles


@dataclass
class _Condition:
    """An open ``#if``: the state before it, and whether its branch is skipped, or never read."""

    state: tuple[int, bool]
    skipping: bool
    never: bool


@dataclass
class MaskedSource:
    """A file in which the grammar can read the declarations.

    Attributes:
        text: The source with blanks.
        defines: Name and range of bytes of each ``#define``.
        begins: Offset of each blanked macro, by the offset of the word after it.
    """

    source: bytes
    text: bytearray = field(init=False)
    defines: list[tuple[str, int, int]] = field(default_factory=list)
    begins: dict[int, int] = field(default_factory=dict)
    _conditions: list[_Condition] = field(default_factory=list)
    _skips: int = 0
    _depth: int = 0
    _last: str = ";"

    def __post_init__(self) -> None:
        self.text = bytearray(self.source)
        line: list[Token] = []
        for token in tokens(self.source):
            if token.kind == "comment":
                self._blank(token.start, token.end)
            elif line or token.kind == "directive":
                line.append(token)
                if token.kind == "close":
                    self._directive(line)
                    line = []
            elif self._skips:
                self._blank(token.start, token.end)
            else:
                self._last = token.text
                self._depth += (token.text in "([{") - (token.text in ")]}")
                if token.kind in ("string", "char") and token.text[-1] not in "\"'":
                    self._blank(token.start, token.end)  # it is never closed
                    self.text[token.start] = ord("0")
        self._blank_macros(_TYPE_MACRO)

    def _blank(self, start: int, end: int) -> None:
        self.text[start:end] = b" " * (end - start)

    def _directive(self, line: Sequence[Token]) -> None:
        """Take in a whole preprocessor line, from ``#`` to its end."""
        self._blank(line[0].start, line[-1].start)
        word = line[1].text if len(line) > 1 else ""
        if word in ("if", "ifdef", "ifndef"):
            never = [token.text for token in line[1:-1]] == ["if", "0"]
            self._conditions.append(_Condition(self._state(), never, never))
            self._skips += never
        elif word in ("else", "elif", "elifdef", "elifndef") and self._conditions:
            condition = self._conditions[-1]
            begun = self._state() != condition.state
            skipping = not condition.never and (condition.skipping or begun)
            self._skips += skipping - condition.skipping
            condition.skipping, condition.never = skipping, False
        elif word == "endif" and self._conditions:
            self._skips -= self._conditions.pop().skipping
        elif word == "define" and len(line) > 3 and not self._skips:
            self.defines.append((line[2].text, line[0].start, line[-2].end))

    def _state(self) -> tuple[int, bool]:
        """Return the number of open brackets, and whether a declaration has begun."""
        return self._depth, self._last not in (";", ",", "{", "}")

    def blank_bodies(self) -> None:
        """Blank function bodies and initializers.

        If brackets do not match, a brace at the start of a line ends a function, so that one broken
        function does not hide the following ones.
        """
        head, before, nested, opened = _Head(0), Token("mark", 0, 0, ";"), 0, 0
        for token in tokens(bytes(self.text)):
            if nested:
                nested += (token.text == "{") - (token.text == "}")
                if nested and self._depth and self.source[token.start - 1 : token.end] == b"\n}":
                    nested = 0
                if not nested:
                    self._blank_body(opened, token.start, before)
                    before = token._replace(kind="body")
                continue
            head = self._head(token, before, head)
            head.add(token, before)
            if token.text == "{" and not head.opens_scope(before):
                nested, opened = 1, token.end
            else:
                before = token

    def _blank_body(self, start: int, end: int, before: Token) -> None:
        self._blank(start, end)
        if before.text in _BEFORE_BODY:  # `{ };` could be an initializer
            self.text[start:end] = self.text[start:end].replace(b" ", b";", 1)
            if needless := re.compile(rb"}\s*;").match(self.text, end):
                self._blank(end + 1, needless.end())

    def _head(self, token: Token, before: Token, head: _Head) -> _Head:
        """Return the declaration of a token, which is a new one if the one before has ended."""
        is_word = token.kind == "word"
        too_long = head.length > MAX_HEAD_TOKENS
        at_margin = self.source[token.start - 1 : token.start] == b"\n"
        if before.kind == "body":
            ended = is_word
        else:
            ended = before.text in (";", "{", "}") or (is_word and too_long and at_margin)
        if not ended:
            return head
        if too_long:
            self._blank(head.start, token.start)
        elif before.kind != "body" and b"}\n" in self.source[before.start : token.start]:
            self.text[before.end] = ord(";")  # a type may lack it
        return _Head(token.start)

    def blank_macros(self) -> None:
        """Blank macros before a type and behind parameters."""
        for pattern in _MACROS:
            self._blank_macros(pattern)

    def _blank_macros(self, pattern: str) -> None:
        for found in list(re.finditer(pattern.encode(), self.text)):
            self.begins[found.end()] = found.start("macro")
            self._blank(*found.span("macro"))
