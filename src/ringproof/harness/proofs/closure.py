"""Digests of the sources on which a test depends. Evidence is stale if a digest changes.

The closure of a test file consists of the file, the ``conftest.py`` files above it, and every
module of the repository that these import directly or indirectly. A string that is the dotted name
of a module of the repository also counts as an import, because tests start ``python -m PACKAGE`` in
subprocesses. Installed packages and data files do not count.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

from ringproof.errors import InputError

_IMPORT_ROOTS = ("src", "")
"""Folders in which absolute imports are searched, from the repository root."""


class SourceClosure:
    """Computes digests of test files in one repository. Every file is read and parsed once.

    Args:
        root: Root of the repository.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._direct: dict[Path, frozenset[Path]] = {}
        self._hashes: dict[Path, str] = {}

    def files(self, test_file: str) -> tuple[str, ...]:
        """Return the closure as sorted paths relative to the root; empty if the file is missing."""
        start = self._root / test_file
        if not start.is_file():
            return ()
        seen: set[Path] = set()
        stack = [start, *self._conftests(start)]
        while stack:
            path = stack.pop()
            if path not in seen:
                seen.add(path)
                stack.extend(self._imports(path))
        return tuple(sorted(path.relative_to(self._root).as_posix() for path in seen))

    def digest(self, test_file: str) -> str | None:
        """Return the SHA-256 over names and contents of the closure, or ``None``."""
        names = self.files(test_file)
        if not names:
            return None
        total = hashlib.sha256()
        for name in names:
            total.update(f"{name}\0{self._hash(self._root / name)}\n".encode())
        return total.hexdigest()

    def _hash(self, path: Path) -> str:
        if path not in self._hashes:
            self._hashes[path] = hashlib.sha256(_read(path)).hexdigest()
        return self._hashes[path]

    def _conftests(self, start: Path) -> Iterator[Path]:
        for folder in start.parents:
            if (folder / "conftest.py").is_file():
                yield folder / "conftest.py"
            if folder == self._root:
                return

    def _imports(self, path: Path) -> frozenset[Path]:
        if path not in self._direct:
            try:
                tree = ast.parse(_read(path))
            except (SyntaxError, ValueError, RecursionError):
                # Its bytes count. The test run reports the error.
                tree = ast.Module(body=[], type_ignores=[])
            # pytest puts a test file's folder (the first that is not a package) on the path.
            bases = {self._root / name for name in _IMPORT_ROOTS} | {_import_base(path)}
            named = {name for node in ast.walk(tree) for name in _named(node)}
            started = {text for node in ast.walk(tree) for text in _dotted_text(node)}
            found = set(self._relative(tree, path))
            for base in bases:
                for name in named | started:
                    found.update(self._below(base, name.split(".")))
                for name in started:
                    main = base.joinpath(*name.split("."), "__main__.py")
                    found.update([main] if main.is_file() else [])
            self._direct[path] = frozenset(found)
        return self._direct[path]

    def _below(self, base: Path, parts: list[str]) -> Iterator[Path]:
        """Yield the files that importing a dotted name executes, parent packages included."""
        folder = base
        for part in parts:
            for candidate in (folder / f"{part}.py", folder / part / "__init__.py"):
                if candidate.is_file():
                    yield candidate
            folder = folder / part
            if not folder.is_dir():
                return

    def _relative(self, tree: ast.Module, path: Path) -> Iterator[Path]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = path
                for _ in range(node.level):
                    base = base.parent
                if not base.is_relative_to(self._root):
                    continue
                module = node.module.split(".") if node.module else []
                for alias in node.names:
                    yield from self._below(base, [*module, alias.name])
                if (base / "__init__.py").is_file():
                    yield base / "__init__.py"


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _dotted_text(node: ast.AST) -> Iterator[str]:
    """Yield a string that could be the argument of ``python -m``."""
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, str) and all(part.isidentifier() for part in value[:200].split(".")):
        yield value[:200]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise InputError(str(path), None, problem, "check its permissions") from error


def _import_base(path: Path) -> Path:
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder
