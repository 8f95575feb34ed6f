"""Folders and installed packages as upstreams. Nothing in them is imported."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

from ringproof.errors import InputError
from ringproof.files import read_bounded, walk_files
from ringproof.harness.upstreams.tree import MAX_FILE_BYTES, UpstreamError, refuse_escape


class FolderTree:
    """The files below a folder.

    Args:
        root: The folder. Links inside it may only lead to places inside it.

    Raises:
        InputError: There is no such folder.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise InputError("dir", root, "no such folder", "name the root of a checkout")
        self._root = root.resolve()

    @property
    def origin(self) -> str:
        """``dir:NAME`` with the last part of the path."""
        return f"dir:{self._root.name}"

    def read(self, path: str) -> bytes:
        """See `UpstreamTree.read`."""
        return _read(self._root, path)

    def paths(self, under: str = "") -> Iterator[str]:
        """See `UpstreamTree.paths`; links and ``.git`` are left out."""
        for file in walk_files(self._root, lambda name: name == ".git"):
            path = file.relative_to(self._root).as_posix()
            if path.startswith(under):
                yield path


class InstalledTree:
    """The files that an installed distribution lists.

    Raises:
        InputError: The package is not installed here, or without files (editable).
    """

    def __init__(self, package: str) -> None:
        try:
            distribution = importlib.metadata.distribution(package)
        except (importlib.metadata.PackageNotFoundError, ValueError) as error:
            problem = "is not installed in this environment"
            raise InputError("installed", package, problem, "install it or use pip:") from error
        files = (file.as_posix() for file in distribution.files or ())
        listed = frozenset(file for file in files if not file.startswith(("/", "../")))
        if not any(file.endswith(".py") for file in listed):
            problem = "is installed without its files (editable, or no record of them)"
            raise InputError("installed", package, problem, "name its folder with dir:")
        self._root = Path(str(distribution.locate_file(""))).resolve()
        self._listed = listed
        self._origin = f"installed:{package}=={distribution.version}"

    @property
    def origin(self) -> str:
        """``installed:PACKAGE==VERSION``."""
        return self._origin

    def read(self, path: str) -> bytes:
        """See `UpstreamTree.read`. Files of other packages are not found."""
        refuse_escape(path)
        if path not in self._listed:
            raise FileNotFoundError(path)
        return _read(self._root, path)

    def paths(self, under: str = "") -> Iterator[str]:
        """See `UpstreamTree.paths`."""
        return (path for path in sorted(self._listed) if path.startswith(under))


def _read(root: Path, path: str) -> bytes:
    refuse_escape(path)
    if "\0" in path:
        raise FileNotFoundError(path)
    try:
        file = (root / path).resolve()
        if not file.is_relative_to(root):
            raise UpstreamError(f"{path!r} is a link that leaves the upstream's root")
        if not file.is_file():
            raise FileNotFoundError(path)
        return read_bounded(file, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise UpstreamError(f"{path}: cannot be read: {reason}") from error
