"""No import circle between the files of the package, nor between its folders.

A folder's own files are one node, its subfolders are others, so that a folder may use what is in
its subfolders or be used by them, and not both. Imports inside functions count like all others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src"
PACKAGE = "ringproof"
ENTRY = f"{PACKAGE}.__main__"  # it starts the command line, and the other files at the root do not


def imported(source: str, known: Iterable[str]) -> set[str]:
    """Return the modules among those known that a file imports."""
    modules = frozenset(known)
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # A name is a module, or a part of the module that it comes from.
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (whole & modules) or {str(node.module)}
    return found & modules


def read_imports() -> dict[str, set[str]]:
    """Return what each module of the package imports of the package."""
    files = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts)] = path.read_text(encoding="utf-8")
    names = {name.removesuffix(".__init__"): name for name in files}
    return {
        name: {names[target] for target in imported(source, names)} - {name}
        for name, source in files.items()
    }


def between_folders(imports: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return the imports between folders, each named by its package."""
    found: dict[str, set[str]] = {}
    for name, targets in imports.items():
        if name == ENTRY:
            continue
        folder = name.rpartition(".")[0]
        others = {target.rpartition(".")[0] for target in targets}
        found.setdefault(folder, set()).update(others - {folder})
    return found


def in_circles(imports: Mapping[str, Iterable[str]]) -> set[str]:
    """Return what imports itself through others, or directly."""

    def reached(name: str) -> set[str]:
        found: set[str] = set()
        left = set(imports[name])
        while left:
            found |= left
            left = {further for one in left for further in imports[one]} - found
        return found

    return {name for name in imports if name in reached(name)}


def test_nothing_imports_itself_through_others() -> None:
    imports = read_imports()
    assert len(imports) > 100
    assert sorted(in_circles(imports)) == []
    assert sorted(in_circles(between_folders(imports))) == []


def test_a_circle_is_seen() -> None:
    sources = {"p.a.x": "from p.b import y", "p.b.y": "def f():\n    import p.a.z", "p.a.z": ""}
    imports = {name: imported(source, sources) for name, source in sources.items()}
    assert in_circles(imports) == set()
    assert in_circles({**imports, "p.a.z": {"p.a.x"}}) == imports.keys()
    assert in_circles(between_folders(imports)) == {"p.a", "p.b"}
