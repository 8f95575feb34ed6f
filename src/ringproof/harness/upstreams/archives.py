"""Downloaded release files in the cache, each with a file of its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError

WHEEL = ".whl"
SDISTS = (".tar.gz", ".zip")


@dataclass(frozen=True)
class Archive:
    """A wheel or a source archive in the cache, and its hash."""

    path: Path
    sha256: str

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel."""
        return self.path.name.endswith(WHEEL)


def cached(folder: Path) -> Iterator[Archive]:
    """Yield the files of one release whose hash is still the recorded one, wheels first."""
    for suffix in (WHEEL, *SDISTS):
        for path in sorted(folder.glob(f"*{suffix}")):
            record = path.with_name(f"{path.name}.sha256")
            if not record.is_file():
                continue
            actual = sha256_of(path)
            if record.read_text("ascii", "replace").strip() == actual:
                yield Archive(path, actual)


def keep(download: Path, folder: Path) -> Archive:
    """Move a downloaded file into the cache, after its hash, so that no file is without a hash."""
    digest = sha256_of(download)
    record = download.with_name(f"{download.name}.sha256")
    record.write_text(f"{digest}\n", "ascii")
    record.replace(folder / record.name)
    return Archive(download.replace(folder / download.name), digest)


def make_folder(folder: Path) -> None:
    """Create a release's folder in the cache.

    Raises:
        InputError: The folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be created: {error.strerror}"
        raise InputError("--cache", folder, problem, "name a writable folder") from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
