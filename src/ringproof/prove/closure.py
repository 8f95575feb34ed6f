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

    def files(self, test_file: str, *, own: bool = False) -> tuple[str, ...]:
        """Return the closure as sorted paths relative to the root; empty if the file is missing.

        Args:
            own: Leave out ``src``, each ``conftest.py`` and what only these import: they run a
                test. What remains is what the test does, and with what it compares.
        """
        start, source = self._root / test_file, self._root / "src"
        seen: set[Path] = set()
        stack = [start, *(() if own else self._conftests(start))] if start.is_file() else []
        while stack:
            path = stack.pop()
            if path not in seen and not (own and source in path.parents):
                seen.add(path)
                stack.extend(self._imports(path))
        return tuple(sorted(path.relative_to(self._root).as_posix() for path in seen))

    def digest(self, test_file: str, *, own: bool = False) -> str | None:
        """Return the SHA-256 over names and contents of `files`, or ``None``."""
        names = self.files(test_file, own=own)
        total = hashlib.sha256()
        for name in names:
            total.update(f"{name}\0{self._hashes[self._root / name]}\n".encode())
        return total.hexdigest() if names else None

    def _conftests(self, start: Path) -> Iterator[Path]:
        for folder in start.parents:
            if (folder / "conftest.py").is_file():
                yield folder / "conftest.py"
            if folder == self._root:
                return

    def _imports(self, path: Path) -> frozenset[Path]:
        """Return the files that a file imports directly, parent packages included."""
        if path in self._direct:
            return self._direct[path]
        try:
            source = path.read_bytes()
        except OSError as error:
            problem = f"the file cannot be read ({error.strerror}); check its permissions"
            raise InputError(str(path), problem) from error
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            # Its bytes count. The test run reports the error.
            tree = ast.Module(body=[], type_ignores=[])
        # pytest puts a test file's folder (the first that is not a package) on the path.
        bases = [*(self._root / name for name in _IMPORT_ROOTS), _import_base(path)]
        found: set[Path] = set()
        for level, name, started in {item for node in ast.walk(tree) for item in _named(node)}:
            for base in path.parents[level - 1 : level] if level else bases:
                found.update(_below(base, name.split("."), relative=bool(level), started=started))
        self._hashes[path] = hashlib.sha256(source).hexdigest()
        self._direct[path] = frozenset(file for file in found if self._root in file.parents)
        return self._direct[path]


def _named(node: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield level and dotted name of imports, and strings that ``python -m`` could get."""
    if isinstance(node, ast.Import):
        yield from ((0, alias.name, False) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        prefix = f"{node.module}." if node.module else ""
        yield from ((node.level, prefix + alias.name, False) for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value[:200]
        if all(part.isidentifier() for part in text.split(".")):
            yield 0, text, True


def _below(folder: Path, parts: list[str], *, relative: bool, started: bool) -> Iterator[Path]:
    """Yield the files that importing a dotted name executes.

    Args:
        relative: Whether the folder is a package itself.
        started: Whether the name is also one for ``python -m``.
    """
    wanted = [folder / "__init__.py"] if relative else []
    for part in parts:
        wanted += [folder / f"{part}.py", folder / part / "__init__.py"]
        folder = folder / part
    wanted += [folder / "__main__.py"] if started else []
    yield from (file for file in wanted if file.is_file())


def _import_base(path: Path) -> Path:
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder
