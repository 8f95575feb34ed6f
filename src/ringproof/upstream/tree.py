"""Read-only access to the files of one upstream version: the interface, wheels and folders."""

from __future__ import annotations

import importlib.metadata
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ringproof.errors import InputError, shown
from ringproof.files import read_bounded, walk_files

MAX_FILE_BYTES = 16_000_000
"""Maximum size of a source file."""
PICTURES = (".gif", ".ico", ".jpeg", ".jpg", ".mp4", ".pdf", ".png", ".webm", ".webp")
"""Ends of names of files that no command reads. They are neither fetched nor unpacked."""


_UNREADABLE = (
    zipfile.BadZipFile, OSError, RuntimeError, ValueError, EOFError, zlib.error, struct.error,
)  # fmt: skip
"""What the standard library raises for damaged archives; a RuntimeError for what it cannot do."""


class UpstreamError(Exception):
    """The upstream cannot be used, for example because of a wrong hash. This is a finding."""


class UpstreamUnavailable(Exception):
    """The upstream is not available on this machine. This is not a finding."""


def refuse_escape(path: str) -> None:
    """Raise `UpstreamError` for a path that could leave its root."""
    parts = path.replace("\\", "/").split("/")
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise UpstreamError(f"{path!r} leaves the upstream's root")


class UpstreamTree:
    """The files of one upstream version.

    Attributes:
        origin: Description of the tree that is sufficient to get it again.
        commit: Its commit; ``None`` if it is not known.
    """

    origin = ""
    commit: str | None = None

    def read(self, path: str) -> bytes:
        """Return the bytes of one file.

        Args:
            path: POSIX path from the upstream's root.

        Raises:
            FileNotFoundError: The file does not exist.
            UpstreamError: The path leaves the root, or the file cannot be read.
            UpstreamUnavailable: The file is in a submodule whose repository was not given.
        """
        refuse_escape(path)
        return self._read(path)

    def paths(self, under: str = "") -> Iterator[str]:
        """Yield the files whose path starts with ``under``, in any order, without links."""
        return (path for path in self._paths() if path.startswith(under))

    def _read(self, path: str) -> bytes:
        raise NotImplementedError

    def _paths(self) -> Iterable[str]:
        raise NotImplementedError


class WheelTree(UpstreamTree):
    """The files of a wheel, which are read from the zip without extracting it.

    Args:
        wheel: ``.whl`` file.
        origin: ``pip:PACKAGE==VERSION``.
        sha256: Hash of the wheel, checked by the caller.

    Raises:
        UpstreamError: The file is not a readable zip.
    """

    def __init__(self, wheel: Path, origin: str, sha256: str) -> None:
        try:
            self._zip = zipfile.ZipFile(wheel)
        except _UNREADABLE as error:
            raise UpstreamError(f"{wheel.name} is not a readable wheel: {error}") from error
        self.origin = f"{origin}#sha256={sha256}"

    def _read(self, path: str) -> bytes:
        try:
            entry = self._zip.getinfo(path)
        except KeyError:
            raise FileNotFoundError(path) from None
        if _is_link(entry):
            raise UpstreamError(f"{path}: a link in an archive is not read")
        if entry.file_size > MAX_FILE_BYTES:
            raise UpstreamError(
                f"{path}: {entry.file_size:,} bytes are too large for a source file"
            )
        try:
            return self._zip.read(entry)  # no more than the size above
        except _UNREADABLE as error:
            raise UpstreamError(f"{path}: cannot be read from the wheel: {error}") from error

    def _paths(self) -> Iterator[str]:
        return (entry.filename for entry in self._zip.infolist() if not _is_link(entry))


def _is_link(entry: zipfile.ZipInfo) -> bool:
    return stat.S_ISLNK(entry.external_attr >> 16)


class FolderTree(UpstreamTree):
    """The files below a folder, without ``.git``. Links may only lead to places inside it.

    Raises:
        InputError: There is no such folder.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise InputError("dir", f"{shown(root)} is not a folder; name the root of a checkout")
        self._root = root.resolve()
        self.origin = f"dir:{self._root.name}"

    def _read(self, path: str) -> bytes:
        if "\0" in path:
            raise FileNotFoundError(path)
        try:
            file = (self._root / path).resolve()
            if not file.is_relative_to(self._root):
                raise UpstreamError(f"{path!r} is a link that leaves the upstream's root")
            if not file.is_file():
                raise FileNotFoundError(path)
            return read_bounded(file, MAX_FILE_BYTES)
        except FileNotFoundError:
            raise
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or "a loop of links"
            raise UpstreamError(f"{path}: cannot be read: {reason}") from error

    def _paths(self) -> Iterable[str]:
        files = walk_files(self._root, lambda name: name == ".git")
        return (file.relative_to(self._root).as_posix() for file in files)


class InstalledTree(FolderTree):
    """The files that an installed distribution lists. Nothing in them is imported.

    Raises:
        InputError: The package is not installed here, or without files (editable).
    """

    def __init__(self, package: str) -> None:
        try:
            distribution = importlib.metadata.distribution(package)
        except (importlib.metadata.PackageNotFoundError, ValueError) as error:
            problem = "is not installed in this environment"
            raise InputError(
                "installed", f"{shown(package)} {problem}; install it or use pip:"
            ) from error
        files = (file.as_posix() for file in distribution.files or ())
        self._listed = frozenset(file for file in files if not file.startswith(("/", "../")))
        if not any(file.endswith(".py") for file in self._listed):
            problem = "is installed without its files (editable, or no record of them)"
            raise InputError("installed", f"{shown(package)} {problem}; name its folder with dir:")
        super().__init__(Path(str(distribution.locate_file(""))))
        self.origin = f"installed:{package}=={distribution.version}"

    def _read(self, path: str) -> bytes:
        if path not in self._listed:
            raise FileNotFoundError(path)
        return super()._read(path)

    def _paths(self) -> Iterable[str]:
        return sorted(self._listed)
