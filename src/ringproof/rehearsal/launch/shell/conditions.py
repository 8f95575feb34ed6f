"""The shell's tests, ``[ ]`` and ``[[ ]]``, with a third answer for what cannot be known."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ringproof.rehearsal.launch.shell.arithmetic import NotKnown
from ringproof.rehearsal.launch.shell.expand import Scope, number, plain, readable

COMPARED: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {
        "-eq": operator.eq,
        "-ne": operator.ne,
        "-lt": operator.lt,
        "-le": operator.le,
        "-gt": operator.gt,
        "-ge": operator.ge,
    }
)
ORDERED: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {"=": operator.eq, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}
)


@dataclass(frozen=True)
class Token:
    """One word of a test.

    Attributes:
        text: Expanded, with its marks.
        bare: Whether it was written without quotes and expansions.
    """

    text: str
    bare: bool


class Test:
    """One test, read from left to right.

    Args:
        patterns: Whether the right side of ``==`` is a pattern, as in ``[[ ]]``.
    """

    def __init__(self, tokens: Sequence[Token], scope: Scope, *, patterns: bool) -> None:
        self._tokens, self._scope, self._patterns, self._at = tokens, scope, patterns, 0

    def answer(self) -> bool | None:
        """Return the test's answer, or ``None`` where only an execution would give it."""
        return self._or() if self._tokens else False

    def __str__(self) -> str:
        return " ".join(readable(token.text) for token in self._tokens)

    def _next(self, *texts: str) -> bool:
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.bare and token.text in texts:
                self._at += 1
                return True
        return False

    def _or(self) -> bool | None:
        found = self._and()
        while self._next("-o", "||"):
            other = self._and()
            found = True if found or other else None if None in (found, other) else False
        return found

    def _and(self) -> bool | None:
        found = self._not()
        while self._next("-a", "&&"):
            other = self._not()
            known = None not in (found, other)
            found = False if found is False or other is False else True if known else None
        return found

    def _not(self) -> bool | None:
        if self._next("!"):
            found = self._not()
            return None if found is None else not found
        if self._next("("):
            found = self._or()
            self._next(")")
            return found
        return self._primary()

    def _take(self) -> Token:
        token = self._tokens[self._at] if self._at < len(self._tokens) else Token("", True)
        self._at += 1
        return token

    def _primary(self) -> bool | None:
        left = self._take()
        if left.bare and re.fullmatch(r"-[a-zA-Z]", left.text) and self._at < len(self._tokens):
            following = self._tokens[self._at]
            if not (following.bare and following.text in (*ORDERED, *COMPARED, "=~")):
                return self._unary(left.text, self._take())
        if self._next("=~"):
            return self._matches(left, self._take())
        for name in (*ORDERED, *COMPARED):
            if self._next(name):
                return self._binary(left, name, self._take())
        return self._known(left, lambda text: text != "")

    def _known(self, token: Token, judge: Callable[[str], bool]) -> bool | None:
        try:
            return judge(plain(token.text))
        except NotKnown:
            return None

    def _unary(self, name: str, token: Token) -> bool | None:
        if name in ("-z", "-n"):
            return self._known(token, lambda text: (text == "") == (name == "-z"))
        if name == "-v":
            return self._known(token, lambda text: self._scope.text(text) is not None)
        return None

    def _binary(self, left: Token, name: str, right: Token) -> bool | None:
        try:
            if name in COMPARED:
                first, second = (number(token.text, self._scope) for token in (left, right))
                return COMPARED[name](first, second)
            first_text, second_text = plain(left.text), plain(right.text)
        except NotKnown:
            return None
        if self._patterns and name in ("=", "==", "!="):
            return fnmatch.fnmatchcase(first_text, second_text) == (name != "!=")
        return ORDERED[name](first_text, second_text)

    def _matches(self, left: Token, right: Token) -> bool | None:
        try:
            return re.search(plain(right.text), plain(left.text)) is not None
        except (NotKnown, re.error):
            return None
