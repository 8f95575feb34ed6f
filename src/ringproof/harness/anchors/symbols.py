"""Finds a symbol in the syntax tree of Python source.

Symbol syntax: a dotted name (``TransformerConfig.cp_comm_type``, ``outer.inner`` for a nested
function) or a command-line option (``--cp-comm-type``, the ``add_argument`` call that has it).
``#2`` after a name picks the second definition at the same level, in source order.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ringproof.harness.anchors.protocol import SymbolError, UnparsableError

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Found:
    """Definition of a symbol.

    Attributes:
        nodes: Statement of the definition, and for a field the docstring below it.
        start, end: First and last line, from 1, without decorators.
    """

    nodes: tuple[ast.AST, ...]
    start: int
    end: int


def parse_source(source: bytes) -> ast.Module:
    """Parse upstream's source without executing or importing it.

    Raises:
        UnparsableError: The source cannot be parsed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnparsableError(f"no Python source: {error}") from error


def find_symbol(module: ast.Module, symbol: str) -> Found:
    """Find the definition that a symbol names.

    Raises:
        SymbolError: There is no definition, or there are several and the symbol has no ``#n``.
    """
    if symbol.startswith("--"):
        return choose_option(option_index(module), symbol)
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
    """Find definitions of a name in a scope; in a function, only functions and classes."""
    assignments = not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef))
    found: list[Found] = []
    for block in statement_blocks(scope):
        for statement, below in zip(block, [*block[1:], None], strict=True):
            if isinstance(statement, _Definition) and statement.name == name:
                found.append(found_node(statement))
            elif assignments and name in targets(statement):
                found.append(found_field(statement, below))
    return sorted(found, key=lambda candidate: candidate.start)


def statement_blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the statement lists of a scope, including those of compound statements.

    Definitions are not entered. The function is iterative because each ``elif`` is a level of the
    tree, and there may be thousands.
    """
    pending: list[ast.AST] = [scope]
    while pending:
        current = pending.pop()
        for name in ("body", "orelse", "finalbody"):
            block = getattr(current, name, None)
            if isinstance(block, list) and block:
                yield block
                pending.extend(item for item in block if not isinstance(item, _Definition))
        pending.extend((*getattr(current, "handlers", ()), *getattr(current, "cases", ())))


def targets(statement: ast.stmt) -> set[str]:
    """Return the plain names to which a statement assigns."""
    if isinstance(statement, ast.AnnAssign):
        assigned: list[ast.expr] = [statement.target]
    elif isinstance(statement, ast.Assign):
        assigned = list(statement.targets)
    else:
        return set()
    names: set[str] = set()
    for target in assigned:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        names.update(part.id for part in parts if isinstance(part, ast.Name))
    return names


def found_node(node: ast.stmt | ast.expr) -> Found:
    """Return a definition, or the call that adds an option."""
    return Found((node,), node.lineno, node.end_lineno or node.lineno)


def found_field(statement: ast.stmt, below: ast.stmt | None) -> Found:
    """Return a field together with the docstring below it."""
    found = found_node(statement)
    if below is None or not is_docstring(below):
        return found
    return Found((statement, below), found.start, below.end_lineno or below.lineno)


def is_docstring(node: ast.AST) -> bool:
    """Return whether a statement is a bare string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


OptionIndex = Mapping[str, Sequence[Found]]
"""The ``add_argument`` calls of a file by option string, each in source order."""


def option_index(module: ast.Module) -> OptionIndex:
    """Return the command-line options of a file."""
    index: dict[str, list[Found]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _called_name(node) == "add_argument":
            values = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            options = [item for item in values if isinstance(item, str) and item.startswith("--")]
            for option in dict.fromkeys(options):
                index.setdefault(option, []).append(found_node(node))
    return index


def choose_option(options: OptionIndex, symbol: str) -> Found:
    """Return the call that adds an option; raises like `find_symbol`."""
    option, wanted = _split_number(symbol)
    calls = sorted(options.get(option, ()), key=lambda call: call.start)
    return _choose(calls, option, wanted, "the file")


def _called_name(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None
