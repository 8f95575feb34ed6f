"""Which tests of a file use upstream packages that the file imports.

The packages that are installed in the test process run without a stage that could note it. A test
uses one if a name that an import binds can be reached from it: in its body, or in functions and
fixtures of the same file that it names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from ringproof.prove.executed import Touch

_PACKAGES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "megatron.core": ("megatron-core", "NVIDIA/Megatron-LM"),
        "transformer_engine": ("transformer-engine", "NVIDIA/TransformerEngine"),
        "megatron.bridge": ("megatron-bridge", "NVIDIA-NeMo/Megatron-Bridge"),
    }
)
_IMPORT = "import "


class ImportedUpstreams:
    """Finds the installed upstream packages that a test uses; each file is parsed once."""

    def __init__(self) -> None:
        self._files: dict[Path, Mapping[str, set[str]]] = {}

    def touches(self, path: Path, function: str) -> tuple[Touch, ...]:
        """Return the packages that a test function of a file executes."""
        if path not in self._files:
            self._files[path] = _read(path)
        named = self._files[path]
        seen: set[str] = set()
        stack = [function]
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                stack.extend(named.get(name, ()))
        found = (_installed(name) for name in sorted(_PACKAGES) if _IMPORT + name in seen)
        return tuple(touch for touch in found if touch is not None)


def _read(path: Path) -> Mapping[str, set[str]]:
    """Return what the definition of each name in a file names; imports as `_IMPORT` and package."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, set[str]] = {}
    for node in tree.body:
        # Methods are asked for by their own names.
        for part in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
            for name in _bound(part):
                found.setdefault(name, set()).update(_named(part))
    return found


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _named(node: ast.AST) -> Iterator[str]:
    """Yield the names that occur in a statement, and the upstream packages that it imports."""
    for child in ast.walk(node):
        modules: list[str] = []
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.arg):
            yield child.arg
        elif isinstance(child, ast.Import):
            modules = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and not child.level:
            modules = [f"{child.module}.{alias.name}" for alias in child.names]
        for package in _PACKAGES:
            if any(f"{module}.".startswith(f"{package}.") for module in modules):
                yield _IMPORT + package


def _installed(module: str) -> Touch | None:
    package, repo = _PACKAGES[module]
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    root = str(distribution.locate_file(""))
    return Touch(True, repo, f"{package} {distribution.version}", root)
