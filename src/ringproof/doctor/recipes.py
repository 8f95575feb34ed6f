"""Settings of a recipe of Megatron-Bridge: a Python function that assigns fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringproof.doctor.fields import DECIDES, of_fields
from ringproof.doctor.settings import Settings
from ringproof.errors import InputError

CHOICE = "RINGPROOF_RECIPE"
GPUS = re.compile(r"_(\d+)gpu_")
"""World size in the name of a recipe."""
MOST_CALLS = 10
"""Recipes of one file that build on one another."""


def of_recipe(path: Path, text: str, sets: Mapping[str, str]) -> Settings:
    """Return what a recipe assigns, or passes by name, where the value stands there.

    Of a file with several recipes, ``RINGPROOF_RECIPE`` chooses one. Recipes of the same file that
    it calls come first.

    Raises:
        InputError: It is not Python, sets nothing, or holds several recipes.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(str(path), str(error), "is not Python", "correct it") from error
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    public = {name: node for name, node in functions.items() if not name.startswith("_")}
    recipes = [
        name
        for name, node in public.items()
        if any(field.endswith("_parallel_size") for field, _ in _assigned(node))
    ]
    chosen = sets.get(CHOICE, recipes[0] if len(recipes) == 1 else "")
    if recipes and chosen not in recipes:
        problem = f"holds {len(recipes)} recipes"
        remedy = f"choose one with --set {CHOICE}=NAME, such as {recipes[0]}"
        raise InputError(str(path), chosen or None, problem, remedy)
    assigned = list(_followed(functions[chosen], functions) if chosen else _assigned(tree))
    if not assigned:
        remedy = "give a recipe that assigns fields, such as cfg.model.context_parallel_size"
        raise InputError(str(path), None, "sets nothing", remedy)
    fields: dict[str, Any] = {}
    notes = []
    for name, value in assigned:
        try:
            fields[name] = ast.literal_eval(value)
        except (ValueError, TypeError):
            fields.pop(name, None)
            if DECIDES.search(name.rpartition(".")[2]):
                notes.append(f"{name} is computed and was not read")
    settings = of_fields(fields, path.name, program="bridge")
    gpus = GPUS.search(chosen)
    return replace(settings, notes=tuple(notes), ranks=int(gpus[1]) if gpus else None)


def _followed(
    node: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef], depth: int = 0
) -> Iterator[tuple[str, ast.expr]]:
    """Assignments of the functions that a function calls, then its own."""
    for call in (inner for inner in ast.walk(node) if isinstance(inner, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in functions and functions[name] is not node and depth < MOST_CALLS:
            yield from _followed(functions[name], functions, depth + 1)
    yield from _assigned(node)


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Fields with their values, as they stand in the text from top to bottom."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.Call)))
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node, ast.Call):
            passed = (keyword for keyword in node.keywords if keyword.arg is not None)
            yield from ((f"model.{keyword.arg}", keyword.value) for keyword in passed)
        elif len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute):
            yield ast.unparse(node.targets[0]), node.value
