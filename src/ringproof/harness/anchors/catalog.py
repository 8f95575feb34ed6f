"""Lists every symbol of a Python file under the name that an anchor uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ringproof.harness.anchors.symbols import (
    Found,
    found_field,
    found_node,
    option_index,
    statement_blocks,
    targets,
)

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def catalog(module: ast.Module) -> Mapping[str, Found]:
    """Return all definitions of a file by name. Repeated names end in ``#n``."""
    found: dict[str, Found] = {}
    pending: list[tuple[str, ast.AST]] = [("", module)]
    while pending:
        prefix, scope = pending.pop()
        for name, definition in _numbered(_members(scope)):
            found[f"{prefix}{name}"] = definition
            if isinstance(definition.nodes[0], _SCOPES):
                pending.append((f"{prefix}{name}.", definition.nodes[0]))
    for option, calls in option_index(module).items():
        found.update(_numbered((option, call) for call in calls))
    return MappingProxyType(found)


def _members(scope: ast.AST) -> Iterator[tuple[str, Found]]:
    """Yield the definitions that `find_symbol` finds directly inside a scope."""
    fields = not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef))
    for block in statement_blocks(scope):
        for statement, below in zip(block, [*block[1:], None], strict=True):
            if isinstance(statement, _SCOPES):
                yield statement.name, found_node(statement)
                continue
            names = sorted(targets(statement)) if fields else ()
            yield from ((name, found_field(statement, below)) for name in names)


def _numbered(members: Iterator[tuple[str, Found]]) -> Iterator[tuple[str, Found]]:
    grouped: dict[str, list[Found]] = {}
    for name, definition in members:
        grouped.setdefault(name, []).append(definition)
    for name, several in grouped.items():
        if len(several) == 1:
            yield name, several[0]
            continue
        ordered = sorted(several, key=lambda definition: definition.start)
        yield from ((f"{name}#{index}", item) for index, item in enumerate(ordered, 1))
