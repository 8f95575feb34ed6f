"""What a package's source can print: its output calls and its string literals."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

# Calls that put text on a stream or into a log, by the last part of their name.
OUTPUT_NAMES = frozenset(
    [
        "print",
        "print_rank_0",
        "print_rank_last",
        "log_single_rank",
        "log_on_each_pipeline_stage",
        "log",
        "debug",
        "info",
        "warning",
        "warn",
        "warn_rank_0",
        "error",
        "critical",
        "exception",
        "write",
    ]
)


def parse_package(root: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file below a folder with its syntax tree."""
    for path in sorted(root.rglob("*.py")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield path, ast.parse(path.read_bytes(), filename=str(path))


def output_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls that print or log."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = getattr(function, "attr", None) or getattr(function, "id", None)
            if name in OUTPUT_NAMES:
                yield node


def mentions(node: ast.AST, text: str) -> bool:
    """Whether a name or a string literal inside the node contains the text."""
    return any(
        text in part
        for inner in ast.walk(node)
        for part in (
            getattr(inner, "id", None),
            getattr(inner, "attr", None),
            getattr(inner, "value", None),
        )
        if isinstance(part, str)
    )


def literals(tree: ast.AST, text: str) -> Iterator[ast.Constant]:
    """The string literals that contain the text, docstrings included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and text in node.value:
            yield node
