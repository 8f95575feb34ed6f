"""Splits C++ and CUDA source into declarations by matching brackets.

A grammar alone fails on real CUDA files, which have macros in place of declarations, statements as
macro arguments, and branches of ``#if`` that open the same brace. So brackets are matched first. A
declaration that cannot be parsed ends with its brackets and does not affect the next one.

All branches of ``#if`` are read, with two exceptions: ``#if 0``, and the other branches after one
that begins a scope or declaration without ending it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ringproof.harness.anchors.native.declarations import Declaration, Scope
from ringproof.harness.anchors.native.heads import (
    Opening,
    is_label,
    listed_names,
    opening,
    scope_names,
    stands_alone,
)
from ringproof.harness.anchors.native.tokens import Token, tokens
from ringproof.harness.anchors.protocol import UnparsableError

MAX_DEPTH = 256
"""Namespaces and types in one another; more are refused."""
MAX_DECLARATIONS = 100_000
"""Declarations in one file, which bounds the memory a hostile file takes; more are refused."""
MAX_HEAD_TOKENS = 4_000
"""A longer declaration keeps only its first tokens for naming it."""
MAX_INITIALIZERS = 8
"""Braces of initializers in one declaration, after which the token before a brace decides."""

_OPENERS = frozenset(("(", "["))
_CLOSERS = frozenset((")", "]"))


@dataclass
class _Frame:
    """An open brace, with its meaning and the tokens before it."""

    scope: Scope
    head: tuple[Token, ...] = ()
    opened: int = 0
    end: int = 0
    inner: int = 0


@dataclass
class _Condition:
    """An open ``#if``, with the state of the scanner, and whether its branches are skipped."""

    state: tuple[int, ...]
    skipping: bool = False
    never: bool = False


@dataclass
class _Scanner:
    source: bytes
    by_columns: bool
    frames: list[_Frame]
    found: list[Declaration] = field(default_factory=list)
    head: list[Token] = field(default_factory=list)
    length: int = 0
    brackets: int = 0
    nested: int = 0
    initializers: int = 0
    closed: _Frame | None = None
    conditions: list[_Condition] = field(default_factory=list)
    skips: int = 0

    def directive(self, line: list[Token]) -> None:
        """Read a whole preprocessor line, from ``#`` to its end."""
        word = line[1].text if len(line) > 1 else ""
        if word in ("if", "ifdef", "ifndef"):
            never = [token.text for token in line[1:-1]] == ["if", "0"]
            self.conditions.append(_Condition(self._state(), never, never))
            self.skips += never
        elif word in ("else", "elif", "elifdef", "elifndef") and self.conditions:
            self._other_branch(self.conditions[-1])
        elif word == "endif" and self.conditions:
            self.skips -= self.conditions.pop().skipping
        elif word == "define" and len(line) > 3 and not self.skips:
            scope, (start, end) = self.frames[0].scope, (line[0].start, line[-2].end)
            self._add(Declaration(Opening.MACRO, scope, tuple(line[2:-1]), start, end))

    def _other_branch(self, condition: _Condition) -> None:
        begun = self._state() != condition.state
        skipping = not condition.never and (condition.skipping or begun)
        self.skips += skipping - condition.skipping
        condition.skipping, condition.never = skipping, False

    def _state(self) -> tuple[int, ...]:
        return (len(self.frames), self.frames[-1].inner, self.brackets, self.nested, self.length)

    def code(self, token: Token) -> None:
        frame = self.frames[-1]
        if frame.scope.kind is Opening.FUNCTION:
            self._in_body(frame, token)
        elif self.nested:
            self._in_initializer(token)
        else:
            self._at_level(token)

    def _in_body(self, frame: _Frame, token: Token) -> None:
        if token.text == "{":
            frame.inner += 1
        elif token.text == "}":
            outermost = self.by_columns and self._column(token) == 0
            frame.inner = 0 if outermost else frame.inner - 1
            if frame.inner <= 0:
                self._close(token)

    def _column(self, token: Token) -> int:
        return token.start - (self.source.rfind(b"\n", 0, token.start) + 1)

    def _in_initializer(self, token: Token) -> None:
        self.nested += {"{": 1, "}": -1}.get(token.text, 0)
        if self.brackets or not self.nested:
            self._keep(token)

    def _at_level(self, token: Token) -> None:
        text = token.text if token.kind == "mark" else ""
        if token.kind == "word" and self._ends_before(token):
            self._finish()
        if text == "{":
            self._open(token)
        elif text == "}":
            self._close(token)
        elif text == ";" or (text == "," and self._in_list()):
            self._finish(token if text == ";" else None)
        elif self.brackets or text not in _CLOSERS:
            self.brackets += (text in _OPENERS) - (text in _CLOSERS)
            self._keep(token)
            if text == ":" and is_label(self.head):
                self._drop()

    def _in_list(self) -> bool:
        return self.frames[-1].scope.kind is Opening.ENUM and not self.brackets

    def _ends_before(self, token: Token) -> bool:
        """Return whether a declaration is a macro's call on its own line, without a semicolon."""
        if not self.head or b"\n" not in self.source[self.head[-1].end : token.start]:
            return False
        if self.brackets:  # a block inside brackets that are not closed
            return self.head[-1].text == "}"
        over = self.length > MAX_HEAD_TOKENS and self._column(token) == 0
        return over or self.head[-1].text == "}" or stands_alone(self.head)

    def _keep(self, token: Token) -> None:
        self.length += 1
        if self.length <= MAX_HEAD_TOKENS:
            self.head.append(token)

    def _drop(self) -> None:
        self.head = []
        self.length = self.brackets = self.nested = self.initializers = 0

    def _open(self, token: Token) -> None:
        kind = self._opening()
        if kind is Opening.VALUE:
            self.nested = 1
            self.initializers += 1
            self._keep(token)
            return
        self._end_type()
        if len(self.frames) > MAX_DEPTH:
            raise UnparsableError(f"scopes nested more than {MAX_DEPTH} deep")
        outside = self.frames[-1].scope
        named = kind in (Opening.NAMESPACE, Opening.TYPE, Opening.ENUM)
        names = scope_names(self.head, kind) if named else ()
        inside = Scope(Opening.FUNCTION if kind is Opening.BLOCK else kind, names, outside)
        self.frames.append(_Frame(inside, tuple(self.head), token.end, inner=1))
        self._drop()

    def _opening(self) -> Opening:
        if self.brackets:
            return Opening.VALUE
        if self.initializers < MAX_INITIALIZERS:
            return opening(self.head, self._in_list())
        return Opening.FUNCTION if self.head[-1].text in (")", "}") else Opening.VALUE

    def _close(self, token: Token) -> None:
        frame = self.frames[-1]
        if frame.scope.kind in (Opening.TYPE, Opening.ENUM):
            self._finish()
        self._end_type()
        self._drop()
        if frame.scope.parent is None:
            return
        self.frames.pop()
        frame.end = token.end
        if frame.scope.kind in (Opening.TYPE, Opening.ENUM):
            self.closed = frame
        elif frame.scope.kind is Opening.FUNCTION and frame.head:
            body = (frame.opened, token.start)
            self._found(Opening.FUNCTION, frame.head, token.end, body=body)

    def _end_type(self) -> None:
        """End a type whose brace is closed, also without a semicolon."""
        if self.closed is not None:
            frame, self.closed = self.closed, None
            self._found(frame.scope.kind, frame.head, frame.end, opens=frame.scope)

    def _finish(self, semicolon: Token | None = None) -> None:
        """End a declaration, with or without a semicolon."""
        head = tuple(self.head)
        last = semicolon or (head[-1] if head else None)
        self._drop()
        if self.closed is not None:
            frame, self.closed = self.closed, None
            if not frame.scope.names:
                frame.scope.names = listed_names(head)[:1]
            end = last.end if last is not None else frame.end
            self._found(frame.scope.kind, frame.head, end, opens=frame.scope, tail=head)
        elif head and last is not None:
            listed = self.frames[-1].scope.kind is Opening.ENUM
            self._found(Opening.ENUMERATOR if listed else Opening.DECLARATION, head, last.end)

    def _found(
        self,
        kind: Opening,
        head: tuple[Token, ...],
        end: int,
        *,
        body: tuple[int, int] | None = None,
        opens: Scope | None = None,
        tail: tuple[Token, ...] = (),
    ) -> None:
        scope, begin = self.frames[-1].scope, head[0].start
        self._add(Declaration(kind, scope, head, begin, end, body, opens, tail))

    def _add(self, statement: Declaration) -> None:
        if len(self.found) >= MAX_DECLARATIONS:
            raise UnparsableError(f"more than {MAX_DECLARATIONS:,} declarations")
        self.found.append(statement)

    def finish_file(self) -> bool:
        """End the file, and return whether every brace was closed."""
        balanced = len(self.frames) == 1
        end = Token("mark", len(self.source), len(self.source), "}")
        while len(self.frames) > 1:
            self._close(end)
        self._finish()
        return balanced


def scan(source: bytes) -> tuple[Declaration, ...]:
    """Return all declarations of a file, each after those inside it.

    If braces do not match, the file is read a second time, and a brace at the start of a line then
    ends a function, so that one broken function does not hide the following ones.

    Raises:
        UnparsableError: There are too many scopes or declarations.
    """
    found, balanced = _scan(source, by_columns=False)
    return found if balanced else _scan(source, by_columns=True)[0]


def _scan(source: bytes, *, by_columns: bool) -> tuple[tuple[Declaration, ...], bool]:
    scanner = _Scanner(source, by_columns, [_Frame(Scope(Opening.FILE, ()))])
    line: list[Token] = []
    for token in tokens(source):
        if token.kind == "comment":
            continue
        if line or token.kind == "directive":
            line.append(token)
            if token.kind == "close":
                scanner.directive(line)
                line = []
        elif not scanner.skips:
            scanner.code(token)
    balanced = scanner.finish_file()
    return tuple(scanner.found), balanced
