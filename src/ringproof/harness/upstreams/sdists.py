"""Source archives from the package index, for releases that have no wheel.

pip is not used because it would run an archive's build code to get its metadata. The archive is
only downloaded and compared with the hash of the index.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import (
    InvalidSdistFilename,
    NormalizedName,
    canonicalize_name,
    parse_sdist_filename,
)
from packaging.version import InvalidVersion, Version

from ringproof.harness.upstreams.archives import SDISTS, Archive, keep, make_folder, sha256_of
from ringproof.harness.upstreams.connection import Connection, NotThere
from ringproof.harness.upstreams.pip import pip_settings
from ringproof.harness.upstreams.simpleindex import IndexFile, index_files
from ringproof.harness.upstreams.tree import UpstreamError, UpstreamUnavailable


class SdistSource:
    """The source archives of one release at the places that pip would search."""

    def __init__(self, package: str, version: str) -> None:
        self._settings = pip_settings()
        self._connection = Connection(self._settings)
        self._name = canonicalize_name(package)
        self._version = version

    def files(self) -> Iterator[IndexFile]:
        """Yield the listed files in pip's order: folders of links, index, further indexes.

        Raises:
            UpstreamUnavailable: A place cannot be reached. The places before it were read.
        """
        for file in index_files(self._name, self._settings, self._connection):
            if _is_release(file.name, self._name, self._version):
                yield file

    def download(self, file: IndexFile, folder: Path) -> Archive | None:
        """Download a file into the cache; return ``None`` if it is listed but does not exist.

        Raises:
            UpstreamUnavailable: It cannot be downloaded from here.
            UpstreamError: It does not have the hash of the index, or is too large.
            InputError: The folder cannot be created.
        """
        make_folder(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
            path = Path(scratch) / file.name
            try:
                self._connection.download(file.url, path)
            except NotThere:
                return None
            except UpstreamUnavailable as error:
                raise UpstreamUnavailable(f"could not download {file.name}: {error}") from error
            actual = sha256_of(path)
            if file.sha256 is not None and actual != file.sha256:
                problem = f"has SHA-256 {actual}, and the index says {file.sha256}"
                raise UpstreamError(f"{file.name} {problem}")
            return keep(path, folder)


def _is_release(file: str, name: NormalizedName, version: str) -> bool:
    if not file.endswith(SDISTS):
        return False
    try:
        found, number = parse_sdist_filename(file)
        return found == name and number == Version(version)
    except (InvalidSdistFilename, InvalidVersion):
        return False
