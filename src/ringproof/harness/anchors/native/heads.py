"""Reads the first tokens of a declaration: its name, and the meaning of its brace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise

from ringproof.harness.anchors.native.tokens import Token


class Opening(str, Enum):
    """Meaning of an opening brace, and kinds of declarations without a brace."""

    FILE = "file"
    NAMESPACE = "namespace"
    LINKAGE = "linkage"
    TYPE = "type"
    ENUM = "enum"
    FUNCTION = "function"
    VALUE = "value"
    BLOCK = "block"
    DECLARATION = "declaration"
    ENUMERATOR = "enumerator"
    MACRO = "macro"


MACRO_NAME = re.compile(r"[A-Z][A-Z0-9_]+")
_MAX_CALL_TOKENS = 400
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_TYPE_WORDS = frozenset(("class", "struct", "union", "enum"))
_LABELS = frozenset(("public", "private", "protected"))
# Words before a bracket that are not the name of a function.
_ATTRIBUTES = frozenset(
    (
        *("alignas", "__align__", "__attribute__", "__declspec", "__launch_bounds__"),
        *("__cluster_dims__", "__maxnreg__", "decltype", "typeof"),
        *("noexcept", "requires", "explicit", "throw"),
    )
)
_NO_NAMES = frozenset(
    (
        *("operator", "return", "sizeof", "static_assert", "template", "friend", "const", "auto"),
        *("void", "bool", "char", "short", "int", "long", "float", "double", "signed", "unsigned"),
    )
)


def prefix_length(head: Sequence[Token]) -> int:
    """Count the tokens of ``template <...>`` and ``[[...]]`` before the declaration."""
    at = 0
    while at < len(head):
        following = head[at + 1].text if at + 1 < len(head) else ""
        if head[at].text == "template" and following == "<":
            at = after_angles(head, at + 1)
        elif head[at].text == "[" and following == "[":
            at = after_brackets(head, at)
        else:
            break
    return min(at, max(0, len(head) - 1))


def after_angles(head: Sequence[Token], at: int) -> int:
    """Return the index after the ``>`` that closes the ``<`` at an index."""
    depth = brackets = 0
    for index in range(at, len(head)):
        text = head[index].text
        brackets += (text in _OPEN) - (text in _CLOSE)
        if brackets <= 0:
            depth += (text == "<") - (text == ">")
        if depth <= 0 or text == ";":
            return index + 1
    return len(head)


def after_brackets(head: Sequence[Token], at: int) -> int:
    """Return the index after the bracket that closes the one at an index."""
    depth = 0
    for index in range(at, len(head)):
        depth += (head[index].text in _OPEN) - (head[index].text in _CLOSE)
        if depth <= 0:
            return index + 1
    return len(head)


def outer(head: Sequence[Token]) -> Iterator[int]:
    """Return the indices of the tokens outside of brackets, and of the brackets themselves."""
    depth = 0
    for index, token in enumerate(head):
        depth -= token.text in _CLOSE
        if depth <= 0:
            yield index
        depth = max(0, depth) + (token.text in _OPEN)


def opening(head: Sequence[Token], in_list: bool) -> Opening:
    """Return what a brace after these tokens opens; ``in_list`` inside an enumeration."""
    rest = head[prefix_length(head) :]
    if not rest:
        return Opening.BLOCK
    if in_list:
        return Opening.VALUE
    if len(rest) == 2 and rest[0].text == "extern" and rest[1].kind == "string":
        return Opening.LINKAGE
    places = list(outer(rest))
    called = any(rest[index].text == "(" for index in places)
    if not called and any(rest[index].text == "namespace" for index in places):
        return Opening.NAMESPACE
    if value_at(rest) is not None:
        return Opening.VALUE
    key = _type_keyword(rest)
    if key is not None and _is_type(rest[key:]):
        return Opening.ENUM if rest[key].text == "enum" else Opening.TYPE
    if not called or _in_member_initializers(rest, places):
        return Opening.VALUE
    return Opening.FUNCTION


def value_at(head: Sequence[Token]) -> int | None:
    """Return the index of the ``=`` of an initializer."""
    for index in outer(head):
        before = (token.text for token in head[max(0, index - 2) : index])
        if head[index].text == "=" and "operator" not in before:
            return index
    return None


def _in_member_initializers(head: Sequence[Token], places: Sequence[int]) -> bool:
    """Return whether a brace initializes a member: ``Name(...) : member{``, not ``member(1) {``."""
    called = next(index for index in places if head[index].text == "(")
    listed = any(index > called and head[index].text == ":" for index in places)
    return listed and (head[-1].kind == "word" or head[-1].text == ">")


def _type_keyword(head: Sequence[Token]) -> int | None:
    for index in outer(head):
        if head[index].text in _TYPE_WORDS:
            return index
        if head[index].kind != "word" and head[index].text not in ("(", ")", "[", "]"):
            return None
    return None


def _is_type(head: Sequence[Token]) -> bool:
    """Return whether ``struct ...`` is a definition and not the type of a function or value.

    Only attributes have brackets before the base classes, and they come before the name.
    """
    start = _type_name_at(head)
    if start is None:
        return True
    for index in outer(head[start:]):
        token = head[start + index]
        if token.text == ":":
            return True
        if token.text == "(":
            return False
    end = after_chain(head, start)
    return end >= len(head) or head[end].text in ("final", ":") or head[end].kind != "word"


def _type_name_at(head: Sequence[Token]) -> int | None:
    """Return the index of the name in ``struct ATTRIBUTE(...) Name``, or ``None``."""
    at = 1
    while at < len(head):
        text, following = head[at].text, head[at + 1].text if at + 1 < len(head) else ""
        if text in _TYPE_WORDS:
            at += 1
        elif text == "[" or (head[at].kind == "word" and following == "("):
            at = after_brackets(head, at if text == "[" else at + 1)
        elif MACRO_NAME.fullmatch(text) and at + 1 < len(head) and head[at + 1].kind == "word":
            at += 1
        else:
            return at if head[at].kind == "word" and text != "final" else None
    return None


def after_chain(head: Sequence[Token], at: int) -> int:
    """Return the index after ``a::b<c>::d``, which starts at an index."""
    at += 1
    while at < len(head):
        if head[at].text == "<":
            at = after_angles(head, at)
        elif head[at].text == "::" and at + 1 < len(head):
            at += 2
        else:
            break
    return at


def chain(head: Sequence[Token], at: int) -> tuple[str, ...]:
    """Return the names of ``a::b<c>::d`` without template arguments."""
    names, end, index = [], after_chain(head, at), at
    while index < end:
        if head[index].text == "<":
            index = after_angles(head, index)
            continue
        if head[index].kind == "word" and head[index].text not in ("inline", "template"):
            names.append(head[index].text)
        index += 1
    return tuple(names)


def scope_names(head: Sequence[Token], kind: Opening) -> tuple[str, ...]:
    """Return the name of a namespace or a type; empty if it has none."""
    rest = head[prefix_length(head) :]
    if kind is Opening.NAMESPACE:
        at = next(index for index, token in enumerate(rest) if token.text == "namespace") + 1
        return chain(rest, at) if at < len(rest) else ()
    key = _type_keyword(rest)
    start = _type_name_at(rest[key:]) if key is not None else None
    return chain(rest[key:], start) if start is not None else ()


def is_label(head: Sequence[Token]) -> bool:
    """Return whether the tokens are a label such as ``public:``."""
    return len(head) == 2 and head[0].text in _LABELS


def stands_alone(head: Sequence[Token]) -> bool:
    """Return whether the tokens are only the call of a macro: ``NAME(...)``."""
    if not 3 <= len(head) <= _MAX_CALL_TOKENS or (head[1].text, head[-1].text) != ("(", ")"):
        return False
    is_macro = MACRO_NAME.fullmatch(head[0].text) is not None
    return is_macro and after_brackets(head, 1) == len(head)


def guessed_name(head: Sequence[Token]) -> tuple[str, ...]:
    """Guess the name of a declaration that the grammar cannot parse; empty if there is none.

    The name of a function is before its parameters, which are the last brackets after a name that
    are not an attribute. Other names are before the value or at the end.
    """
    rest = head[prefix_length(head) :]
    places = list(outer(rest))
    named = [at - 1 for at in places if at and rest[at].text == "(" and _may_name(rest[at - 1])]
    if named:
        plain = [at for at in named if not MACRO_NAME.fullmatch(rest[at].text)]
        return _chain_ending(rest, (plain[:1] or named[:1])[0])
    value = value_at(rest)
    end = len(rest) if value is None else value
    words = [at for at in places if at < end and rest[at].kind == "word"]
    return (rest[words[-1]].text,) if words and _may_name(rest[words[-1]]) else ()


def listed_names(tail: Sequence[Token]) -> tuple[str, ...]:
    """Return the names between a type's closing brace and its semicolon: ``Edge, *EdgePointer``."""
    commas = [index for index in outer(tail) if tail[index].text == ","]
    edges = [-1, *commas, len(tail)]
    pieces = (tail[start + 1 : end] for start, end in pairwise(edges))
    return tuple(name for piece in pieces for name in guessed_name(piece)[-1:])


def _may_name(token: Token) -> bool:
    return token.kind == "word" and token.text not in _ATTRIBUTES | _NO_NAMES


def _chain_ending(head: Sequence[Token], at: int) -> tuple[str, ...]:
    start = at
    while start >= 2 and head[start - 1].text == "::" and head[start - 2].kind == "word":
        start -= 2
    return chain(head, start)
