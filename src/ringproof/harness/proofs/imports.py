"""Which tests of a file use upstream packages that the file imports.

The packages that are installed in the test process run without a stage that could note it. A test
uses one if a name that an import binds can be reached from it: in its body, or in functions and
fixtures of the same file that it names.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from ringproof.harness.proofs.executed import Touch

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
        for name, package in _bound(node).items():
            found.setdefault(name, set()).add(package)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found.update(dict.fromkeys(names, _named(node)))
        # Methods are asked for by their own names.
        for part in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                found[part.name] = _named(part)
    return found


def _named(node: ast.AST) -> set[str]:
    names: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            names.add(child.id)
        elif isinstance(child, ast.arg):
            names.add(child.arg)
        names.update(_bound(child).values())
    return names


def _bound(node: ast.AST) -> dict[str, str]:
    """Return the names that an import of upstream binds, each with its package."""
    if isinstance(node, ast.Import):
        modules = [(alias.asname or alias.name.split(".")[0], alias.name) for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        modules = [(one.asname or one.name, f"{node.module}.{one.name}") for one in node.names]
    else:
        return {}
    found = {name: _package(module) for name, module in modules}
    return {name: _IMPORT + package for name, package in found.items() if package}


def _package(module: str) -> str:
    return next((name for name in _PACKAGES if f"{module}.".startswith(f"{name}.")), "")


def _installed(module: str) -> Touch | None:
    package, repo = _PACKAGES[module]
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    root = str(distribution.locate_file(""))
    return Touch(True, repo, f"{package} {distribution.version}", root)
