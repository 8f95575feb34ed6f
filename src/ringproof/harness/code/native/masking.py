"""Blanks the parts of a C++ or CUDA file that the grammar stumbles over, by matching brackets.

These are function bodies and initializers, preprocessor lines, macros before a type and in place of
declarations, and declarations whose brackets do not match. None of them is needed to find symbols.
Blanks keep every other byte at its place.

All branches of ``#if`` are kept, with two exceptions: ``#if 0``, and the other branches after one
that begins a scope or declaration without ending it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringproof.harness.code.definitions import UnparsableError
from ringproof.harness.code.native.tokens import Token, tokens

MAX_DEPTH = 256
"""Namespaces and types in one another; more are refused."""
MAX_DECLARATIONS = 100_000
"""Declarations in one file, which bounds the memory a hostile file takes; more are refused."""
MAX_HEAD_TOKENS = 4_000
"""A declaration with more tokens outside of braces is blanked."""

MACRO_NAME = re.compile(r"[A-Z][A-Z0-9_]+")
_TYPES = frozenset(("class", "struct", "union", "enum"))
_LABELS = frozenset(("public", "private", "protected"))
_BEHIND_TYPE = frozenset(("::", "<", "*", "&"))
_BEHIND_TYPE_NAME = frozenset(("::", "<", "{", ":"))
_QUALIFIERS = frozenset(("const", "volatile", "operator"))
# Words that may stand before a type and a name, or behind parameters. Others there are macros.
_KEYWORDS = frozenset(
    (
        *("static", "extern", "inline", "constexpr", "virtual", "explicit", "friend", "mutable"),
        *("const", "volatile", "unsigned", "signed", "long", "short", "int", "char", "auto"),
        *("typedef", "typename", "using", "namespace", "template", "operator", "thread_local"),
        *("class", "struct", "union", "enum", "noexcept", "override", "final", "try", "return"),
        *("alignas", "decltype"),
    )
)
_BEFORE_BODY = frozenset(
    (")", "}", "const", "volatile", "noexcept", "override", "final", "try", "&", "&&")
)


@dataclass
class _Unit:
    """A word outside of brackets, with the brackets behind it."""

    text: str
    start: int
    end: int
    called: bool = False

    def is_macro(self) -> bool:
        """Return whether it is spelled like a macro."""
        return MACRO_NAME.fullmatch(self.text) is not None

    def is_foreign(self) -> bool:
        """Return whether C++ has no such word where only specifiers may stand."""
        return self.text not in _KEYWORDS and not self.text.startswith("__")


@dataclass
class _Head:
    """A declaration up to its body, as far as it tells what a brace opens.

    Attributes:
        start: Offset of the first token.
        length: Number of tokens outside of braces.
        brackets: Open brackets.
        angles: Open angle brackets of ``template <...>``.
        scope: The keyword of a namespace or type.
        units: The last words that follow one another.
        arguments: Open ``<``, with the number of brackets around it and its offset.
    """

    start: int = -1
    first: str = ""
    last: Token | None = None
    length: int = 0
    brackets: int = 0
    template: bool = False
    angles: int = 0
    called: bool = False
    assigned: bool = False
    arrow: bool = False
    scope: str = ""
    units: list[_Unit] = field(default_factory=list)
    arguments: list[tuple[int, int]] = field(default_factory=list)

    def add(self, token: Token) -> None:
        text = token.text if token.kind in ("mark", "word") else ""
        if not self.length:
            self.start, self.first = token.start, token.text
        self.length += 1
        outside = self.brackets == 0
        self.brackets += (text in ("(", "[")) - (text in (")", "]"))
        if outside and not self._in_template(text):
            self._outside(token, text)
        elif self.brackets == 0 and self.units:
            self.units[-1].end = token.end
        self.last = token

    def closed_arguments(self, token: Token) -> int | None:
        """Return the offset of the ``<`` that a ``>`` closes."""
        if self.length > MAX_HEAD_TOKENS:
            return None
        while self.arguments and self.arguments[-1][0] > self.brackets:
            self.arguments.pop()
        if token.text == "<":
            self.arguments.append((self.brackets, token.start))
        closes = token.text == ">" and self.arguments and self.arguments[-1][0] == self.brackets
        return self.arguments.pop()[1] if closes else None

    def _in_template(self, text: str) -> bool:
        """Return whether a token belongs to ``template <...>``, which says nothing of a brace."""
        if text == "template":
            self.template = True
        elif self.template and (self.angles or text == "<"):
            self.angles += (text == "<") - (text == ">")
            self.template = self.angles > 0
            return True
        else:
            self.template = False
        return self.template

    def _outside(self, token: Token, text: str) -> None:
        if token.kind == "word":
            self.units = [*self.units[-3:], _Unit(text, token.start, token.end)]
        elif text == "(" and self.units and self.last and self.last.end == self.units[-1].end:
            self.units[-1].called = True
        else:
            self.units = []
        if text == "=" and (self.last is None or self.last.text not in ("operator", "(", ")")):
            self.assigned = True
        self.called = self.called or text == "("
        self.arrow = self.arrow or text == "->"
        if not self.called and (text in _TYPES or text == "namespace"):
            self.scope = self.scope or text

    def opens(self) -> str:
        """Return what a brace after these tokens opens: ``scope``, ``body`` or ``value``."""
        if self.last is None:
            return "body"
        if self.brackets or self.assigned:
            return "value"
        if self.scope or (self.first == "extern" and self.last.kind == "string"):
            return "scope"
        macro = len(self.units) > 1 and self.units[-2].called  # a macro behind the parameters
        ends = self.arrow or macro or self.last.text in _BEFORE_BODY
        return "body" if self.called and ends else "value"

    def is_macro_call(self) -> bool:
        """Return whether the tokens are only ``NAME(...)``."""
        if self.last is None or self.brackets or len(self.units) != 1:
            return False
        (unit,) = self.units
        whole = (unit.start, unit.end) == (self.start, self.last.end)
        return whole and unit.called and unit.is_macro()

    def macro_before(self, token: Token) -> _Unit | None:
        """Return the macro that the next token shows to be one, and not a type or a name.

        It stands before a type (``API void f``, ``API std::x f``), between ``struct`` and a name,
        or behind the parameters of a function.
        """
        if self.brackets or self.template or len(self.units) < 2:
            return None
        macro, name = self.units[-2:]
        word = token.kind == "word"
        if not name.called and name.text not in _QUALIFIERS:
            if len(self.units) > 2 and self.units[-3].text in _TYPES:
                attribute = macro.is_macro() or (macro.called and macro.text != "alignas")
                return macro if attribute and (word or token.text in _BEHIND_TYPE_NAME) else None
            if (word and macro.is_foreign()) or (token.text in _BEHIND_TYPE and macro.is_macro()):
                return macro
        is_name = macro.called and not macro.is_macro() and macro.is_foreign() and not self.scope
        trails = is_name and name.is_foreign() and (word or token.text in ("{", ";"))
        return name if trails else None


@dataclass
class _Condition:
    """An open ``#if``, with the state of the scan, and whether its branch is skipped."""

    state: tuple[int, ...]
    skipping: bool
    never: bool


@dataclass
class Masked:
    """A file in a form of which the grammar can read the declarations, and the state of its scan.

    Attributes:
        by_columns: Whether a brace at the start of a line ends a function.
        text: The source with blanks.
        starts: Offsets at which declarations begin, in order, with macros that are blanked.
        macros: Name and range of bytes of each ``#define``.
    """

    source: bytes
    by_columns: bool
    text: bytearray = field(init=False)
    starts: list[int] = field(default_factory=list)
    macros: list[tuple[str, int, int]] = field(default_factory=list)
    head: _Head = field(default_factory=_Head)
    scopes: list[str] = field(default_factory=list)
    nested: int = 0
    opened: int = 0
    is_body: bool = False
    ended_body: bool = False
    ended_type: int = 0
    found: int = 0
    conditions: list[_Condition] = field(default_factory=list)
    skips: int = 0

    def __post_init__(self) -> None:
        self.text = bytearray(self.source)

    def scan(self) -> bool:
        """Blank the file once, and return whether every brace was closed."""
        line: list[Token] = []
        for token in tokens(self.source):
            if token.kind == "comment":
                self._blank(token.start, token.end)
            elif line or token.kind == "directive":
                line.append(token)
                if token.kind == "close":
                    self._directive(line)
                    line = []
            else:
                self._code(token)
        return self._finish_file()

    def _blank(self, start: int, end: int) -> None:
        self.text[start:end] = b" " * (end - start)

    def _directive(self, line: Sequence[Token]) -> None:
        """Take in a whole preprocessor line, from ``#`` to its end."""
        self._blank(line[0].start, line[-1].start)
        word = line[1].text if len(line) > 1 else ""
        if word in ("if", "ifdef", "ifndef"):
            never = [token.text for token in line[1:-1]] == ["if", "0"]
            self.conditions.append(_Condition(self._state(), never, never))
            self.skips += never
        elif word in ("else", "elif", "elifdef", "elifndef") and self.conditions:
            condition = self.conditions[-1]
            begun = self._state() != condition.state
            skipping = not condition.never and (condition.skipping or begun)
            self.skips += skipping - condition.skipping
            condition.skipping, condition.never = skipping, False
        elif word == "endif" and self.conditions:
            self.skips -= self.conditions.pop().skipping
        elif word == "define" and len(line) > 3 and not self.skips:
            self._count()
            self.macros.append((line[2].text, line[0].start, line[-2].end))

    def _state(self) -> tuple[int, ...]:
        return (len(self.scopes), self.nested, self.head.brackets, self.head.length)

    def _code(self, token: Token) -> None:
        """Take in one token outside of preprocessor lines."""
        if self.skips:
            self._blank(token.start, token.end)
            return
        if token.kind in ("string", "char") and token.text[-1] not in "\"'":
            self._blank(token.start, token.end)  # it is never closed
            self.text[token.start] = ord("0")
        if self.nested:
            self._in_braces(token)
        else:
            self._between_braces(token)

    def _in_braces(self, token: Token) -> None:
        if token.text == "{":
            self.nested += 1
        elif token.text == "}":
            outermost = self.by_columns and self.is_body and self._column(token) == 0
            self.nested = 0 if outermost else self.nested - 1
            if self.nested:
                return
            self._blank(self.opened, token.start)
            self._add(token)
            if self.is_body:
                if self.opened < token.start:
                    self.text[self.opened] = ord(";")  # `{ }` could be an initializer
                self.ended_body = True
                self._finish()

    def _column(self, token: Token) -> int:
        return token.start - (self.source.rfind(b"\n", 0, token.start) + 1)

    def _between_braces(self, token: Token) -> None:
        text = token.text if token.kind == "mark" else ""
        # A type without its semicolon gets one if the next declaration is on a new line.
        goes_on = text in (";", ",", "*")
        if self.ended_type and not goes_on and b"\n" in self.source[self.ended_type : token.start]:
            self.text[self.ended_type] = ord(";")
        if self.ended_body and text == ";":
            self._blank(token.start, token.end)
        self.ended_type, self.ended_body = 0, False
        if token.kind == "word" and self._ends_before(token):
            self._finish(broken=True)
        macro = self.head.macro_before(token)
        if macro is not None:
            self._blank(macro.start, macro.end)
        if text == "{":
            self._open(token)
        elif text == "}":
            self._close(token)
        elif text == ";" or (
            text == "," and self.scopes[-1:] == ["enum"] and not self.head.brackets
        ):
            self._add(token)
            self._finish()
        elif text in (")", "]") and not self.head.brackets:
            self._blank(token.start, token.end)
        else:
            self._add(token)

    def _add(self, token: Token) -> None:
        head = self.head
        if not head.length:
            self.starts.append(token.start)
        head.add(token)
        opened = head.closed_arguments(token)
        if opened is not None and self.source[token.end : token.end + 1] == b">":
            self._blank(opened, token.end)  # the grammar may take `>>` for a shift
        if token.text == ":" and head.length == 2 and head.first in _LABELS:
            self.head = _Head()

    def _ends_before(self, token: Token) -> bool:
        """Return whether a declaration ended on the line before, without a semicolon."""
        head = self.head
        if head.last is None or b"\n" not in self.source[head.last.end : token.start]:
            return False
        if head.last.text == "}" or head.is_macro_call():
            return True
        return not head.brackets and head.length > MAX_HEAD_TOKENS and self._column(token) == 0

    def _finish(self, *, broken: bool = False) -> None:
        """End a declaration, and blank it if it is not one that the grammar can read."""
        head, self.head = self.head, _Head()
        if head.last is None:
            return
        self._count()
        if broken or head.brackets or head.length > MAX_HEAD_TOKENS:
            self._blank(head.start, head.last.end)

    def _count(self) -> None:
        self.found += 1
        if self.found > MAX_DECLARATIONS:
            raise UnparsableError(f"more than {MAX_DECLARATIONS:,} declarations")

    def _open(self, token: Token) -> None:
        kind = self.head.opens()
        if kind == "scope":
            if len(self.scopes) > MAX_DEPTH:
                raise UnparsableError(f"scopes nested more than {MAX_DEPTH} deep")
            typedef = self.head.first == "typedef"
            self.scopes.append("typedef" if typedef else self.head.scope)
            self.head = _Head()
            return
        self._add(token)
        self.nested, self.opened, self.is_body = 1, token.end, kind == "body"

    def _close(self, token: Token) -> None:
        if self.head.brackets:
            self._finish()
        self.head = _Head()
        if not self.scopes:
            self._blank(token.start, token.end)
        elif self.scopes.pop() in _TYPES:
            self.ended_type = token.end

    def _finish_file(self) -> bool:
        """End the file, and return whether every brace was closed."""
        balanced = not self.nested and not self.scopes
        if self.nested:
            self._blank(self.opened, len(self.source))
            self.text += b"}"
        elif self.head.brackets:
            self._finish()
        self.text += b";" * bool(self.head.length) + b";}" * len(self.scopes)
        return balanced


def mask(source: bytes) -> Masked:
    """Return a file in a form of which the grammar can read the declarations.

    If braces do not match, the file is read a second time, and a brace at the start of a line then
    ends a function, so that one broken function does not hide the following ones.

    Raises:
        UnparsableError: There are too many scopes or declarations.
    """
    for by_columns in (False, True):
        masked = Masked(source, by_columns)
        if masked.scan():
            break
    return masked
