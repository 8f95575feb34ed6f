"""Which tests of a file use upstream packages that the file imports.

A test uses one if a name that an import binds can be reached from it: in its body, or in functions
and fixtures of the same file that it names. Then the packages are listened to while it runs, since
nothing else would tell that packages of the test process ran.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from ringproof.prove.touches import Touch


@dataclass(frozen=True)
class UpstreamPackage:
    """An upstream package on the index: its module, and the repository of its sources."""

    module: str
    name: str
    repo: str

    def installed(self) -> tuple[str, Touch] | None:
        """Return the folder of the installed module, and how it is noted."""
        try:
            found = metadata.distribution(self.name)
        except metadata.PackageNotFoundError:
            return None
        folder = str(found.locate_file(self.module.replace(".", "/")))
        root = str(found.locate_file(""))
        return folder, Touch(False, self.repo, f"{self.name} {found.version}", root)


_PACKAGES = (
    UpstreamPackage("megatron.core", "megatron-core", "NVIDIA/Megatron-LM"),
    UpstreamPackage("transformer_engine", "transformer-engine", "NVIDIA/TransformerEngine"),
    UpstreamPackage("megatron.bridge", "megatron-bridge", "NVIDIA-NeMo/Megatron-Bridge"),
)


class ImportedUpstreams:
    """Finds the upstream packages that a test uses; each file is parsed once."""

    def __init__(self) -> None:
        self._files: dict[Path, Mapping[str, set[str | UpstreamPackage]]] = {}

    def reached(self, path: Path, function: str) -> Iterator[UpstreamPackage]:
        """Yield the packages that a test or fixture of a file can use."""
        if path not in self._files:
            self._files[path] = _read(path)
        seen: set[str | UpstreamPackage] = set()
        stack: list[str | UpstreamPackage] = [function]
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                stack += self._files[path].get(name, ()) if isinstance(name, str) else ()
        yield from (package for package in _PACKAGES if package in seen)


def _read(path: Path) -> Mapping[str, set[str | UpstreamPackage]]:
    """Return what the definition of each name in a file names and imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return MappingProxyType({})
    found: dict[str, set[str | UpstreamPackage]] = {}
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


def _named(node: ast.AST) -> Iterator[str | UpstreamPackage]:
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
            if any(f"{module}.".startswith(f"{package.module}.") for module in modules):
                yield package
