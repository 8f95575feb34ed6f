"""Python files, parsed by `ast`.

Symbol syntax: a dotted name (``TransformerConfig.cp_comm_type``, ``outer.inner`` for a nested
function) or a command-line option (``--cp-comm-type``, the ``add_argument`` call that has it).
``#2`` after a name picks the second definition at the same level, in source order.
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

from ringproof.code.definitions import (
    Definition,
    DefinitionSummary,
    UnparsableError,
    Words,
    chosen,
    numbered,
    shortened,
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NAMED = (*_FUNCTIONS, ast.ClassDef)
_FIELDS = (ast.AnnAssign, ast.Assign)
# Fields that do not affect the meaning. Positions are attributes and not fields.
_IGNORED_FIELDS = frozenset(("ctx", "kind", "type_comment", "type_ignores"))


class PythonDefinition(Definition):
    """A function or class without its decorators, a field with the docstring below it, or the call
    that adds an option.
    """

    def __init__(self, node: ast.stmt | ast.expr, below: ast.stmt | None = None) -> None:
        self.node = node
        self.nodes: tuple[ast.AST, ...] = (node,) if below is None else (node, below)
        last = node if below is None else below
        self.start, self.end = node.lineno, last.end_lineno or last.lineno
        self.is_class = isinstance(node, ast.ClassDef)
        self.is_small = not isinstance(node, _NAMED)
        self.family = type(node).__name__
        self.names = _own_names(node)
        self.name = " ".join(self.names)

    def words(self) -> Words:
        """Return names, dotted names, and the texts of docstrings and literals."""
        chains: set[tuple[str, ...]] = set()
        texts: list[str] = []
        for root in self.nodes:
            for node in ast.walk(root):
                chains.update(_identifiers(node))
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(_folded(node.value))
        return Words({name for chain in chains for name in chain}, chains, texts)

    def split(self, item: str) -> tuple[str, ...]:
        """Split a dotted name."""
        return tuple(item.split("."))

    def code(self) -> Iterator[bytes]:
        """Yield the syntax tree without positions, comments and docstrings.

        `ast.dump` is not used because its text differs between Python versions. Empty fields are
        left out, so that a field that a later Python adds does not change the fingerprint until it
        is used. There is no recursion because a tree can be deeper than its limit.
        """
        stack: list[ast.AST | bytes] = [node for node in self.nodes if not _is_docstring(node)]
        while stack:
            current = stack.pop()
            if isinstance(current, bytes):
                yield current
            else:
                yield f"({type(current).__name__}".encode()
                stack += [b")", *reversed(list(_children(current)))]

    def compared_code(self) -> Iterator[bytes]:
        """See `Definition`; the ends of nodes and the names of their fields do not count."""
        own = [_encoded(name) for name in self.names]
        for part in self.code():
            if part in own:
                own.remove(part)  # where it is defined; further uses are part of the code
                yield b"@"
            elif not part.startswith((b")", b" .")):
                yield part

    def docstrings(self) -> Iterator[str]:
        """Yield the docstrings inside, in the order of `ast.walk`."""
        for root in self.nodes:
            found = filter(_is_docstring, ast.walk(root))
            yield from (_folded(cast("Any", node).value.value) for node in found)

    def summary(self) -> DefinitionSummary:
        """See `Definition`; the defaults of an option are the arguments of its call."""
        node = self.node
        counted = {
            "decorators": Counter(map(_text, getattr(node, "decorator_list", ()))),
            "bases": Counter(map(_text, getattr(node, "bases", ()))),
            "raises": _raised(node),
            "literals": _literals(node),
        }
        return DefinitionSummary(type(node).__name__, _parameters(node), _settings(node), counted)


_Members = Mapping[str, Sequence[PythonDefinition]]


class PythonModule:
    """A Python file, parsed without executing or importing it.

    Raises:
        UnparsableError: The source cannot be parsed.
    """

    def __init__(self, source: bytes) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._root = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UnparsableError(f"no Python source: {error}") from error
        self._members: dict[ast.AST, _Members] = {}

    @cached_property
    def _options(self) -> _Members:
        """The ``add_argument`` calls of the file by option."""
        index: dict[str, list[PythonDefinition]] = {}
        for node in ast.walk(self._root):
            called = node.func if isinstance(node, ast.Call) else None
            name = getattr(called, "attr", getattr(called, "id", None))
            if isinstance(node, ast.Call) and name == "add_argument":
                values = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                named = [item for item in values if isinstance(item, str) and item[:2] == "--"]
                for option in dict.fromkeys(named):
                    index.setdefault(option, []).append(PythonDefinition(node))
        return {name: sorted(calls, key=lambda call: call.start) for name, calls in index.items()}

    def find(self, symbol: str) -> PythonDefinition:
        """See `Module.find`."""
        place = "the file"
        if symbol.startswith("--"):
            return _member(self._options, symbol, place)
        scope: ast.AST = self._root
        for part in symbol.split("."):
            found = _member(self._inside(scope), part, place)
            scope, place = found.node, f"`{part.partition('#')[0]}`"
        return found

    def catalog(self) -> Mapping[str, PythonDefinition]:
        """See `Module.catalog`."""
        found: dict[str, PythonDefinition] = {}
        pending: list[tuple[str, ast.AST]] = [("", self._root)]
        while pending:
            prefix, scope = pending.pop()
            for name, definition in _numbered(self._inside(scope)):
                found[f"{prefix}{name}"] = definition
                if isinstance(definition.node, _NAMED):
                    pending.append((f"{prefix}{name}.", definition.node))
        found.update(_numbered(self._options))
        return MappingProxyType(found)

    def _inside(self, scope: ast.AST) -> _Members:
        """Return the definitions in a scope by name; in a function, only functions and classes."""
        if scope not in self._members:
            members: dict[str, list[PythonDefinition]] = {}
            for name, definition in _definitions(scope):
                members.setdefault(name, []).append(definition)
            for several in members.values():
                several.sort(key=lambda definition: definition.start)
            self._members[scope] = members
        return self._members[scope]


def _numbered(members: _Members) -> Iterator[tuple[str, PythonDefinition]]:
    for name, several in members.items():
        yield from numbered(name, several)


def _member(members: _Members, part: str, place: str) -> PythonDefinition:
    name, _, number = part.partition("#")
    return chosen(members.get(name, ()), name, number, place)


def _definitions(scope: ast.AST) -> Iterator[tuple[str, PythonDefinition]]:
    fields = not isinstance(scope, _FUNCTIONS)
    for block in _statement_blocks(scope):
        for statement, below in zip(block, [*block[1:], None], strict=True):
            if isinstance(statement, _NAMED):
                yield statement.name, PythonDefinition(statement)
                continue
            words = below if below is not None and _is_docstring(below) else None
            for name in sorted(_targets(statement)) if fields else ():
                yield name, PythonDefinition(statement, words)


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
                pending.extend(item for item in block if not isinstance(item, _NAMED))
        pending.extend((*getattr(current, "handlers", ()), *getattr(current, "cases", ())))


def _targets(statement: ast.AST) -> set[str]:
    """Return the plain names to which a statement assigns."""
    if not isinstance(statement, _FIELDS):
        return set()
    assigned = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names: set[str] = set()
    for target in assigned:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        names.update(part.id for part in parts if isinstance(part, ast.Name))
    return names


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _folded(text: str) -> str:
    return " ".join(text.split())


def _identifiers(node: ast.AST) -> Iterator[tuple[str, ...]]:
    if isinstance(node, ast.Name):
        yield (node.id,)
    elif isinstance(node, ast.Attribute):
        yield _chain(node)
    elif isinstance(node, (ast.arg, ast.keyword)):
        if node.arg is not None:
            yield (node.arg,)
    elif isinstance(node, _NAMED):
        yield (node.name,)
    elif isinstance(node, ast.alias):
        yield tuple(node.name.split("."))
        if node.asname is not None:
            yield (node.asname,)


def _chain(node: ast.Attribute) -> tuple[str, ...]:
    """Split ``a.b.c`` into parts, without a call or an index at its start."""
    parts: list[str] = []
    current: ast.expr = node
    while isinstance(current, ast.Attribute):
        parts.append(current.attr)
        current = current.value
    if isinstance(current, ast.Name):
        parts.append(current.id)
    return tuple(reversed(parts))


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
                yield _encoded(item)
            elif not (name == "body" and _is_docstring(item)):
                yield item


def _encoded(value: object) -> bytes:
    return f" {value!r}".encode("utf-8", "backslashreplace")


def _own_names(node: ast.AST) -> list[str]:
    """Return the name of a function or class, the targets of a field, or the names of an option."""
    if isinstance(node, _NAMED):
        return [node.name]
    if isinstance(node, ast.Call):
        values = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        return [value for value in values if isinstance(value, str)]
    return sorted(_targets(node))


def _text(node: ast.AST | None) -> str:
    """Return a node as source on one line, shortened."""
    if node is None:
        return ""
    try:
        return shortened(_folded(ast.unparse(node)))
    except (RecursionError, ValueError):
        return "(deeply nested)"


def _parameters(node: ast.AST) -> Mapping[str, str]:
    """Return parameters of a function, or fields and methods of a class, with their types."""
    if isinstance(node, _FUNCTIONS):
        found = {name: _text(argument.annotation) for name, argument in _arguments(node.args)}
        return {**found, "return": _text(node.returns)} if node.returns is not None else found
    members: dict[str, str] = {}
    for statement in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(statement, _NAMED):
            members[f"{statement.name}()"] = ""
        elif isinstance(statement, ast.AnnAssign):
            members[_text(statement.target)] = _text(statement.annotation)
        elif isinstance(statement, ast.Assign):
            members.update((_text(target), "") for target in statement.targets)
    return members


def _arguments(arguments: ast.arguments) -> Iterator[tuple[str, ast.arg]]:
    for argument in (*arguments.posonlyargs, *arguments.args):
        yield argument.arg, argument
    if arguments.vararg is not None:
        yield f"*{arguments.vararg.arg}", arguments.vararg
    for argument in arguments.kwonlyargs:
        yield argument.arg, argument
    if arguments.kwarg is not None:
        yield f"**{arguments.kwarg.arg}", arguments.kwarg


def _settings(node: ast.AST) -> Mapping[str, str]:
    """Return default values of parameters or fields, or the settings of an option."""
    if isinstance(node, _FUNCTIONS):
        positional = (*node.args.posonlyargs, *node.args.args)
        tail = positional[len(positional) - len(node.args.defaults) :]
        pairs = [*zip(tail, node.args.defaults, strict=True)]
        keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        pairs += [(argument, value) for argument, value in keywords if value is not None]
        return {argument.arg: _text(value) for argument, value in pairs}
    if isinstance(node, ast.ClassDef):
        fields = (item for item in node.body if isinstance(item, _FIELDS))
        return {name: text for field in fields for name, text in _settings(field).items()}
    if isinstance(node, ast.AnnAssign):
        return {_text(node.target): _text(node.value)} if node.value is not None else {}
    if isinstance(node, ast.Assign):
        return {_text(target): _text(node.value) for target in node.targets}
    if isinstance(node, ast.Call):
        return {keyword.arg or "**": _text(keyword.value) for keyword in node.keywords}
    return {}


def _raised(node: ast.AST) -> Counter[str]:
    names: Counter[str] = Counter()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise) and inner.exc is not None:
            error = inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc
            names[_text(error)] += 1
        elif isinstance(inner, ast.Assert):
            names["AssertionError"] += 1
    return names


def _literals(node: ast.AST) -> Counter[str]:
    """Count the constants in a body. Those of signatures and fields count as defaults."""
    counts: Counter[str] = Counter()
    stack: list[ast.AST] = [*node.body] if isinstance(node, _NAMED) else []
    if isinstance(node, ast.ClassDef):
        stack = [item for item in stack if not isinstance(item, _FIELDS)]
    while stack:
        current = stack.pop()
        if _is_docstring(current):
            continue
        if isinstance(current, ast.Constant):
            counts[_text(current)] += 1
        stack.extend(ast.iter_child_nodes(current))
    return counts
