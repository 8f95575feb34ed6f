"""Read-only access to the files of one upstream version."""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

MAX_FILE_BYTES = 16_000_000
"""Maximum size of a source file."""


class UpstreamError(Exception):
    """The upstream cannot be used, for example because of a wrong hash. This is a finding."""


class UpstreamUnavailable(Exception):
    """The upstream is not available on this machine. This is not a finding."""


class UpstreamTree(Protocol):
    """The files of one upstream version.

    Implementations: `WheelTree`, `SdistTree`, `GitTree`, `FolderTree`, `InstalledTree`.
    """

    @property
    def origin(self) -> str:
        """Description of the tree that is sufficient to get it again."""

    def read(self, path: str) -> bytes:
        """Return the bytes of one file.

        Args:
            path: POSIX path from the upstream's root.

        Raises:
            FileNotFoundError: The file does not exist.
            UpstreamError: The path leaves the root, or the file cannot be read.
            UpstreamUnavailable: The file is in a submodule whose repository was not given.
        """

    def paths(self, under: str = "") -> Iterator[str]:
        """Yield the files whose path starts with ``under``, in any order."""


class WheelTree:
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
        except (zipfile.BadZipFile, OSError) as error:
            raise UpstreamError(f"{wheel.name} is not a readable wheel: {error}") from error
        self._origin = origin
        self.sha256 = sha256

    @property
    def origin(self) -> str:
        """``pip:PACKAGE==VERSION#sha256=...``."""
        return f"{self._origin}#sha256={self.sha256}"

    def read(self, path: str) -> bytes:
        """See `UpstreamTree.read`."""
        refuse_escape(path)
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
            with self._zip.open(entry) as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
        except (zipfile.BadZipFile, OSError, RuntimeError, EOFError, zlib.error) as error:
            raise UpstreamError(f"{path}: cannot be read from the wheel: {error}") from error
        if len(data) > MAX_FILE_BYTES:
            raise UpstreamError(f"{path}: larger than the archive says")
        return data

    def paths(self, under: str = "") -> Iterator[str]:
        """See `UpstreamTree.paths`; links are left out."""
        files = (entry.filename for entry in self._zip.infolist() if not _is_link(entry))
        return (name for name in files if name.startswith(under))


def _is_link(entry: zipfile.ZipInfo) -> bool:
    return stat.S_ISLNK(entry.external_attr >> 16)


def refuse_escape(path: str) -> None:
    """Raise `UpstreamError` for a path that could leave its root."""
    parts = path.replace("\\", "/").split("/")
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise UpstreamError(f"{path!r} leaves the upstream's root")
