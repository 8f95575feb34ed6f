"""What a launch's program imports, read from its text; nothing of it is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ringproof.errors import InputError
from ringproof.files import read_input
from ringproof.parsing import parsed_python

MAX_BYTES = 4 << 20


def imports_of(script: str) -> tuple[str, ...]:
    """Return the names that a file imports, anywhere in it; none where it cannot be read.

    Args:
        script: Path of the program.
    """
    path = Path(script)
    if path.suffix != ".py" or not path.is_file():
        return ()
    try:
        tree = parsed_python(read_input(path, MAX_BYTES, remedy="name a program"))
    except (InputError, ValueError):
        return ()
    return tuple(_imported(tree))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
