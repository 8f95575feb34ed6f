"""Which tests of a file use upstream packages that the file imports.

The packages that are installed in the test process run without a stage that could note it. A test
uses one if a name that an import binds can be reached from it: in its body, or in functions and
fixtures of the same file that it names.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Scope:
    """What a definition names, and the upstream packages that it imports itself."""

    names: frozenset[str]
    packages: frozenset[str]


class ImportedUpstreams:
    """Finds the installed upstream packages that a test uses; each file is parsed once."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[Mapping[str, _Scope], Mapping[str, str]]] = {}

    def touches(self, path: Path, function: str) -> tuple[Touch, ...]:
        """Return the packages that a test function of a file executes."""
        if path not in self._files:
            self._files[path] = _read(path)
        scopes, bound = self._files[path]
        seen: set[str] = set()
        packages: set[str] = set()
        stack = [function]
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in bound:
                packages.add(bound[name])
            if name in scopes:
                packages |= scopes[name].packages
                stack.extend(scopes[name].names)
        return tuple(touch for name in sorted(packages) if (touch := _installed(name)) is not None)


def _read(path: Path) -> tuple[Mapping[str, _Scope], Mapping[str, str]]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}, {}
    scopes: dict[str, _Scope] = {}
    bound: dict[str, str] = {}
    for node in tree.body:
        bound.update(_bound(node))
        for name in _defined(node):
            scopes[name] = _scope(node)
        if isinstance(node, ast.ClassDef):  # methods are asked for by their own names
            scopes.update({m.name: _scope(m) for m in node.body if isinstance(m, ast.FunctionDef)})
    return scopes, bound


def _defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines, other than by imports."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _scope(node: ast.AST) -> _Scope:
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    names |= {child.arg for child in ast.walk(node) if isinstance(child, ast.arg)}
    inner = {package for child in ast.walk(node) for package in _bound(child).values()}
    return _Scope(frozenset(names), frozenset(inner))


def _bound(node: ast.AST) -> dict[str, str]:
    """Return the names that an import of upstream binds, each with its package."""
    found = {}
    if isinstance(node, ast.Import):
        for alias in node.names:
            package = _package(alias.name)
            if package:
                found[alias.asname or alias.name.split(".")[0]] = package
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            package = _package(f"{node.module}.{alias.name}")
            if package:
                found[alias.asname or alias.name] = package
    return found


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
