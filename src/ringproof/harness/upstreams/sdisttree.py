"""Reads the files of a source archive without extracting or running anything."""

from __future__ import annotations

import gzip
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ringproof.harness.upstreams.tree import (
    MAX_FILE_BYTES,
    UpstreamError,
    WheelTree,
    refuse_escape,
)

MAX_ARCHIVE_BYTES = 500_000_000
"""Maximum size after decompression."""
MAX_ENTRIES = 50_000

_MAX_NAME_BYTES = 65_536
_IN_MEMORY_BYTES = 8_000_000
_LONG_HEADERS = frozenset(
    (
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    )
)
_DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError)


class SdistTree:
    """A source archive without its top folder ``NAME-VERSION/``.

    A ``.tar.gz`` can only be read sequentially, so it is read once. Its files are kept in memory,
    or in an unnamed temporary file if they are large.

    Args:
        archive: ``.tar.gz`` or ``.zip`` file.
        origin: ``pip:PACKAGE==VERSION``.
        sha256: Hash of the archive, checked by the caller.

    Raises:
        UpstreamError: The archive cannot be read, has entries outside of one top folder, or exceeds
            `MAX_ARCHIVE_BYTES` or `MAX_ENTRIES`.
    """

    def __init__(self, archive: Path, origin: str, sha256: str) -> None:
        self._origin = origin
        self.sha256 = sha256
        self._files: WheelTree | _TarFiles
        if archive.name.endswith(".zip"):
            self._files = WheelTree(archive, origin, sha256)
        else:
            self._files = _TarFiles(archive)
        names = [name for name in self._files.paths() if not name.endswith("/")]
        self._top = _top_folder(archive.name, names)

    @property
    def origin(self) -> str:
        """``pip:PACKAGE==VERSION#sha256=...``."""
        return f"{self._origin}#sha256={self.sha256}"

    def read(self, path: str) -> bytes:
        """See `UpstreamTree.read`; a link or device is refused."""
        refuse_escape(path)
        return self._files.read(f"{self._top}/{path}")

    def paths(self, under: str = "") -> Iterator[str]:
        """See `UpstreamTree.paths`; links and devices are left out."""
        skipped = len(self._top) + 1
        found = (name[skipped:] for name in self._files.paths(f"{self._top}/"))
        return (path for path in found if path.startswith(under) and not path.endswith("/"))


def _top_folder(archive: str, names: list[str]) -> str:
    if len(names) > MAX_ENTRIES:
        raise UpstreamError(f"{archive} has more than {MAX_ENTRIES:,} entries")
    tops = {name.partition("/")[0] for name in names if "/" in name}
    if len(tops) != 1 or not all("/" in name for name in names):
        raise UpstreamError(f"{archive} is not a source archive: its files are not in one folder")
    for name in names:
        try:
            refuse_escape(name)
        except UpstreamError as error:
            raise UpstreamError(f"{archive} is refused: an entry {error}") from error
    return tops.pop()


class _TarFiles:
    """The regular files of a ``.tar.gz``, by their full names."""

    def __init__(self, archive: Path) -> None:
        self._store: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
        self._places: dict[str, tuple[int, int]] = {}
        self._refused: dict[str, str] = {}
        try:
            with gzip.open(archive) as stream:
                bounded: Any = _Bounded(stream, archive.name)
                with tarfile.open(fileobj=bounded, mode="r|", tarinfo=_Header) as entries:
                    self._index(entries, archive.name)
                while bounded.read(1 << 16):
                    pass  # to the checksum at the end
        except _DAMAGE as error:
            self._store.close()
            reason = " ".join(str(error).split())[:200]
            raise UpstreamError(f"{archive.name} is not a readable archive: {reason}") from error

    def read(self, name: str) -> bytes:
        if name in self._refused:
            raise UpstreamError(f"{name}: {self._refused[name]}")
        if name not in self._places:
            raise FileNotFoundError(name)
        start, size = self._places[name]
        self._store.seek(start)
        return self._store.read(size)

    def paths(self, under: str = "") -> Iterator[str]:
        return (name for name in self._places if name.startswith(under))

    def _index(self, entries: tarfile.TarFile, archive: str) -> None:
        for count, entry in enumerate(entries):
            if count >= MAX_ENTRIES:
                raise UpstreamError(f"{archive} has more than {MAX_ENTRIES:,} entries")
            name = entry.name.removeprefix("./")
            if entry.isdir():
                continue
            # As in an extraction, the last entry of a name counts.
            self._places.pop(name, None)
            self._refused.pop(name, None)
            if not entry.isreg() or entry.issparse():
                self._refused[name] = "a link, device or sparse file in an archive is not read"
            elif entry.size > MAX_FILE_BYTES:
                self._refused[name] = f"{entry.size:,} bytes are too large for a source file"
            else:
                self._places[name] = (self._store.tell(), entry.size)
                self._keep(entries, entry)

    def _keep(self, entries: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        source = entries.extractfile(entry)
        data = b"" if source is None else source.read(entry.size)
        if len(data) != entry.size:
            raise EOFError(f"{entry.name} is cut off")
        self._store.write(data)


class _Header(tarfile.TarInfo):
    """Header of an entry, which is refused if it is damaged or would need unbounded memory.

    `tarfile` would take a damaged header for the end of the archive.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if any(buf):
                raise tarfile.ReadError(f"an entry's header is damaged: {error}") from error
            raise
        if header.type in _LONG_HEADERS and header.size > _MAX_NAME_BYTES:
            raise UpstreamError(f"a header of {header.size:,} bytes is too large for a file name")
        return header


class _Bounded:
    """A stream that raises after `MAX_ARCHIVE_BYTES`."""

    def __init__(self, stream: gzip.GzipFile, name: str) -> None:
        self._stream = stream
        self._name = name
        self._left = MAX_ARCHIVE_BYTES

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise UpstreamError(f"{self._name} is larger than {MAX_ARCHIVE_BYTES:,} bytes")
        return data
