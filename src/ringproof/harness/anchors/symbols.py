"""Finding a symbol in Python source, through the syntax tree.

Symbol syntax: a dotted name (``TransformerConfig.cp_comm_type``, ``outer.inner`` for a nested
function) or a command-line option (``--cp-comm-type``, the ``add_argument`` call that has it).
``#2`` after a name picks the second definition at the same level, in source order.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Found:
    """A symbol's definition.

    Attributes:
        nodes: Its statement, and for a field the docstring below it.
        start, end: 1-based lines, decorators excluded.
    """

    nodes: tuple[ast.AST, ...]
    start: int
    end: int


class SymbolError(LookupError):
    """A symbol that is not there (`ambiguous` false) or there several times (true)."""

    def __init__(self, message: str, *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


class UnparsableError(ValueError):
    """The file is no Python source that this interpreter can parse."""


def parse_source(source: bytes) -> ast.Module:
    """Parse upstream's source without executing or importing it.

    Raises:
        UnparsableError: It cannot be parsed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnparsableError(f"no Python source: {error}") from error


def find_symbol(module: ast.Module, symbol: str) -> Found:
    """Find the one definition a symbol names.

    Raises:
        SymbolError: None, or several without ``#n``.
    """
    if symbol.startswith("--"):
        option, wanted = _split_number(symbol)
        calls = [_found_node(call) for call in _option_calls(module, option)]
        return _choose(calls, option, wanted, "the file")
    scope: ast.AST = module
    found: Found | None = None
    place = "the file"
    for part in symbol.split("."):
        name, wanted = _split_number(part)
        found = _choose(_definitions(scope, name), name, wanted, place)
        scope = found.nodes[0]
        place = f"`{name}`"
    if found is None:
        raise SymbolError("the symbol is empty")
    return found


def _split_number(part: str) -> tuple[str, int | None]:
    name, _, number = part.partition("#")
    return name, int(number) if number else None


def _choose(candidates: Sequence[Found], name: str, wanted: int | None, place: str) -> Found:
    if not candidates:
        raise SymbolError(f"no `{name}` in {place}")
    if wanted is not None:
        if wanted > len(candidates):
            raise SymbolError(f"`{name}` is defined {len(candidates)} time(s) in {place}")
        return candidates[wanted - 1]
    if len(candidates) > 1:
        lines = ", ".join(str(candidate.start) for candidate in candidates)
        message = f"`{name}` is defined on lines {lines} of {place}: say `{name}#1` or later"
        raise SymbolError(message, ambiguous=True)
    return candidates[0]


def _definitions(scope: ast.AST, name: str) -> list[Found]:
    """Definitions of a name in the body of a scope; in a function only functions and classes."""
    assignments = not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef))
    found: list[Found] = []
    for block in _blocks(scope):
        for statement, below in zip(block, [*block[1:], None], strict=True):
            if isinstance(statement, _Definition) and statement.name == name:
                found.append(_found_node(statement))
            elif assignments and name in _targets(statement):
                found.append(_found_field(statement, below))
    return sorted(found, key=lambda candidate: candidate.start)


def _blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    """The statement lists of a scope, through if, try, with and loops, not into definitions."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(scope, name, None)
        if isinstance(block, list) and block:
            yield block
            for statement in block:
                yield from () if isinstance(statement, _Definition) else _blocks(statement)
    for inner in (*getattr(scope, "handlers", ()), *getattr(scope, "cases", ())):
        yield from _blocks(inner)


def _targets(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.AnnAssign):
        targets: list[ast.expr] = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    else:
        return set()
    names: set[str] = set()
    for target in targets:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        names.update(part.id for part in parts if isinstance(part, ast.Name))
    return names


def _found_node(node: ast.stmt | ast.expr) -> Found:
    return Found((node,), node.lineno, node.end_lineno or node.lineno)


def _found_field(statement: ast.stmt, below: ast.stmt | None) -> Found:
    """A field together with the docstring under it, which is where upstream explains it."""
    found = _found_node(statement)
    if below is None or not is_docstring(below):
        return found
    return Found((statement, below), found.start, below.end_lineno or below.lineno)


def is_docstring(node: ast.AST) -> bool:
    """Whether a statement is a bare string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _option_calls(module: ast.Module, option: str) -> Iterator[ast.Call]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _called_name(node) == "add_argument":
            values = (arg.value for arg in node.args if isinstance(arg, ast.Constant))
            if option in values:
                yield node


def _called_name(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None
