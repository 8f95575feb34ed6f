"""The rules of the house that neither ruff nor import-linter has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

MAX_FUNCTION_LINES = 60
MAX_NESTING = 3

MUTABLE_CALLS = frozenset(
    {"dict", "list", "set", "defaultdict", "Counter", "deque", "bytearray", "fromkeys"}
)
CACHES = frozenset({"cache", "lru_cache"})
ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
MUTABLE_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)


def violations(path: str, source: str) -> dict[str, str]:
    """Return every rule that a file breaks as ``path::rule::what``, with its place.

    ``path`` is relative to the repository, with slashes.
    """
    tree = ast.parse(source, path)
    found = [*sizes(tree), *(mutable_state(tree) if path.startswith("src/") else ())]
    return {
        f"{path}::{rule}::{what}": f"{path}:{line} {rule}: {what}" for line, rule, what in found
    }


def sizes(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """A function fits a screen and nests little."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES:
                yield node.lineno, "function-length", node.name
            if nesting(node) > MAX_NESTING:
                yield node.lineno, "nesting", node.name


def nesting(node: ast.AST) -> int:
    """Depth of loops, conditions, ``with`` and ``try`` below a node; ``elif`` adds none."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        block = isinstance(child, ast.For | ast.While | ast.If | ast.With | ast.Try | ast.Match)
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        deepest = max(deepest, nesting(child) + (block and not is_elif))
    return deepest


def mutable_state(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """No module or class holds a list, dictionary, set or cache."""
    for node in module_level(tree):
        value = node.value if isinstance(node, ASSIGNMENTS) else None
        exported = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        cached = any(name_of(d) in CACHES for d in getattr(node, "decorator_list", []))
        if cached or (value is not None and is_mutable(value) and not exported):
            yield node.lineno, "mutable-state", ast.unparse(node)[:60]


def module_level(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements that run when the module is loaded, those of classes and conditions included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from module_level(child)


def is_mutable(value: ast.expr) -> bool:
    """A display or constructor that can change later, also as a part of a tuple or expression.

    An argument of another call does not count: ``frozenset({...})`` is frozen.
    """
    if isinstance(value, MUTABLE_DISPLAYS):
        return True
    if isinstance(value, ast.Call):
        return name_of(value) in MUTABLE_CALLS
    parts = (child for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr))
    return isinstance(value, ast.Tuple | ast.BinOp | ast.IfExp | ast.BoolOp) and any(
        map(is_mutable, parts)
    )


def name_of(called: ast.expr) -> str:
    """``Counter`` for ``Counter``, ``collections.Counter`` and calls of either."""
    called = called.func if isinstance(called, ast.Call) else called
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
