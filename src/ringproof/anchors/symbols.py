"""Symbols of Python files, which are parsed by `ast` and neither executed nor imported.

A symbol is a dotted name (``TransformerConfig.cp_comm_type``, ``outer.inner`` for a nested
function) or a command-line option (``--cp-comm-type``, the ``add_argument`` call that has it).
``#2`` after a name picks the second definition at the same level, in source order.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

from ringproof.parsing import parsed_python

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NAMED = (*FUNCTIONS, ast.ClassDef)
FIELDS = (ast.AnnAssign, ast.Assign)
# Fields of a node that do not affect the meaning. Positions are attributes and not fields.
_IGNORED_FIELDS = frozenset(("ctx", "kind", "type_comment", "type_ignores"))


class SymbolError(LookupError):
    """A symbol does not exist (`ambiguous` false), or exists several times (true)."""

    def __init__(self, message: str, *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


class UnparsableError(ValueError):
    """The file cannot be parsed as Python."""


class Definition:
    """A function or class without its decorators, a field with the docstring below it, or the call
    that adds an option.

    Attributes:
        start, end: First and last line, from 1.
        names: Its name; several for an option or for a field that assigns several.
    """

    def __init__(self, node: ast.stmt | ast.expr, below: ast.stmt | None = None) -> None:
        self.node = node
        self._nodes: tuple[ast.AST, ...] = (node,) if below is None else (node, below)
        last = node if below is None else below
        self.start, self.end = node.lineno, last.end_lineno or last.lineno
        self.names = _own_names(node)

    def missing(self, expects: Sequence[str]) -> tuple[str, ...]:
        """Return the expectations that do not occur inside it.

        An item occurs as an identifier, as a dotted name that the code has, or as a part of a
        string, with white space folded. Comments do not count.
        """
        chains: set[str] = set()
        texts: list[str] = []
        for node in (node for root in self._nodes for node in ast.walk(root) if expects):
            chains.update(f".{chain}." for chain in _identifiers(node))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(folded(node.value))

        def occurs(item: str) -> bool:
            whole = f".{item}."  # so that `size` is not found in `sizes`
            return any(whole in chain for chain in chains) or any(item in text for text in texts)

        return tuple(item for item in expects if not occurs(folded(item)))

    def code(self) -> Iterator[bytes]:
        """Yield the syntax tree without positions, comments and docstrings.

        `ast.dump` is not used because its text differs between Python versions. Empty fields are
        left out, so that a field that a later Python adds does not change the fingerprint until it
        is used. There is no recursion because a tree can be deeper than its limit.
        """
        stack: list[ast.AST | bytes] = [node for node in self._nodes if not is_docstring(node)]
        while stack:
            current = stack.pop()
            if isinstance(current, bytes):
                yield current
            else:
                yield f"({type(current).__name__}".encode()
                stack += [b")", *reversed(list(_children(current)))]

    def fingerprint(self) -> str:
        """Return the SHA-256 of its code. Layout, comments and docstrings do not count."""
        return hashlib.sha256(b"".join(self.code())).hexdigest()

    def documentation(self) -> str:
        """Return the docstrings inside it, one per line, with white space folded."""
        found = (node for root in self._nodes for node in ast.walk(root) if is_docstring(node))
        return "".join(f"{folded(cast('Any', node).value.value)}\n" for node in found)


_Members = Mapping[str, Sequence[Definition]]


class Module:
    """A Python file.

    Raises:
        UnparsableError: The source cannot be parsed.
    """

    def __init__(self, source: bytes) -> None:
        try:
            self._root = parsed_python(source)
        except ValueError as error:
            raise UnparsableError(f"no Python source: {error}") from error
        self._members: dict[ast.AST, _Members] = {}

    def find(self, symbol: str) -> Definition:
        """Return the definition that a symbol names.

        Raises:
            SymbolError: There is none, or there are several and the symbol has no number.
        """
        if symbol.startswith("--"):
            return _chosen(self._options, symbol, "the file")
        scope: ast.AST = self._root
        place = "the file"
        for part in symbol.split("."):
            found = _chosen(self._inside(scope), part, place)
            scope, place = found.node, f"`{part.partition('#')[0]}`"
        return found

    def catalog(self) -> Mapping[str, Definition]:
        """Return all definitions by the symbols that name them."""
        found: dict[str, Definition] = {}
        pending: list[tuple[str, ast.AST]] = [("", self._root)]
        while pending:
            prefix, scope = pending.pop()
            for name, definition in _numbered(self._inside(scope)):
                found[f"{prefix}{name}"] = definition
                if isinstance(definition.node, NAMED):
                    pending.append((f"{prefix}{name}.", definition.node))
        found.update(_numbered(self._options))
        return MappingProxyType(found)

    @cached_property
    def _options(self) -> _Members:
        """The ``add_argument`` calls of the file by option."""
        calls: list[tuple[str, Definition]] = []
        for node in ast.walk(self._root):
            called = node.func if isinstance(node, ast.Call) else None
            name = getattr(called, "attr", getattr(called, "id", None))
            if isinstance(node, ast.Call) and name == "add_argument":
                definition = Definition(node)
                options = dict.fromkeys(name for name in definition.names if name[:2] == "--")
                calls += [(option, definition) for option in options]
        return _by_name(calls)

    def _inside(self, scope: ast.AST) -> _Members:
        """Return the definitions in a scope by name; in a function, only functions and classes."""
        if scope not in self._members:
            self._members[scope] = _by_name(_definitions(scope))
        return self._members[scope]


def _by_name(definitions: Iterable[tuple[str, Definition]]) -> _Members:
    members: dict[str, list[Definition]] = {}
    for name, definition in definitions:
        members.setdefault(name, []).append(definition)
    for several in members.values():
        several.sort(key=lambda definition: definition.start)
    return members


def _numbered(members: _Members) -> Iterator[tuple[str, Definition]]:
    """Yield the symbols in a scope: ``name``, or ``name#1``, ``name#2`` where it has several."""
    for name, several in members.items():
        for number, definition in enumerate(several, 1):
            yield name if len(several) == 1 else f"{name}#{number}", definition


def _chosen(members: _Members, part: str, place: str) -> Definition:
    """Return the definition that a part of a symbol names; ``place`` is for messages."""
    name, _, number = part.partition("#")
    several = members.get(name, ())
    if not several:
        raise SymbolError(f"no `{name}` in {place}")
    lines = ", ".join(str(item.start) for item in several[:8])
    if number and int(number) > len(several):
        raise SymbolError(f"`{name}` is defined on lines {lines} of {place} only")
    if not number and len(several) > 1:
        message = f"`{name}` is defined on lines {lines} of {place}: write `{name}#1` for the first"
        raise SymbolError(message, ambiguous=True)
    return several[int(number or 1) - 1]


def _definitions(scope: ast.AST) -> Iterator[tuple[str, Definition]]:
    has_fields = not isinstance(scope, FUNCTIONS)
    for block in _statement_blocks(scope):
        for statement, below in zip(block, [*block[1:], None], strict=True):
            if isinstance(statement, NAMED):
                yield statement.name, Definition(statement)
            elif has_fields:
                words = below if below is not None and is_docstring(below) else None
                yield from ((name, Definition(statement, words)) for name in _own_names(statement))


def _statement_blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the statement lists of a scope, including those of compound statements.

    Definitions are not entered. There is no recursion because each ``elif`` is a level of the tree,
    and there may be thousands.
    """
    pending: list[ast.AST] = [scope]
    while pending:
        current = pending.pop()
        for name in ("body", "orelse", "finalbody"):
            block = getattr(current, name, None)
            if isinstance(block, list) and block:
                yield block
                pending.extend(item for item in block if not isinstance(item, NAMED))
        pending.extend((*getattr(current, "handlers", ()), *getattr(current, "cases", ())))


def _own_names(node: ast.AST) -> tuple[str, ...]:
    """Return the name of a function or class, the plain names to which a field assigns, or the
    names of an option.
    """
    if isinstance(node, NAMED):
        return (node.name,)
    if isinstance(node, ast.Call):
        values = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        return tuple(value for value in values if isinstance(value, str))
    targets: Sequence[ast.expr] = ()
    if isinstance(node, FIELDS):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [
        part
        for target in targets
        for part in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target])
    ]
    return tuple(sorted({part.id for part in parts if isinstance(part, ast.Name)}))


def is_docstring(node: ast.AST) -> bool:
    """Return whether a statement is a string by itself."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def folded(text: str) -> str:
    """Return text with single spaces and none at the ends."""
    return " ".join(text.split())


def _identifiers(node: ast.AST) -> Iterator[str]:
    """Yield the names that one node adds, dotted as the code has them."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield _dotted(node)
    elif isinstance(node, (ast.arg, ast.keyword)):
        yield node.arg or ""
    elif isinstance(node, NAMED):
        yield node.name
    elif isinstance(node, ast.alias):
        yield from (node.name, node.asname or "")


def _dotted(node: ast.Attribute) -> str:
    """Return ``a.b.c`` as text, without a call or an index at its start."""
    parts: list[str] = []
    current: ast.expr = node
    while isinstance(current, ast.Attribute):
        parts.append(current.attr)
        current = current.value
    if isinstance(current, ast.Name):
        parts.append(current.id)
    return ".".join(reversed(parts))


def _children(node: ast.AST) -> Iterator[ast.AST | bytes]:
    """Yield the inner nodes of a node; names of fields and values as they enter the fingerprint."""
    for name, value in ast.iter_fields(node):
        if name in _IGNORED_FIELDS or value is None or value == []:
            # `Constant.value` may be None itself; any other missing field means nothing.
            if isinstance(node, ast.Constant) and name == "value":
                yield b" .None"
            continue
        yield f" .{name}".encode()
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, ast.AST):
                yield encoded(item)
            elif not (name == "body" and is_docstring(item)):
                yield item


def encoded(value: object) -> bytes:
    """Return a name or a constant as a part of `Definition.code`."""
    return f" {value!r}".encode("utf-8", "backslashreplace")
