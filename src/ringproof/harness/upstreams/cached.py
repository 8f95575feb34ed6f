"""Wheels in the cache, each beside the SHA-256 that it had when it was downloaded."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from ringproof.errors import InputError
from ringproof.files import read_bounded

_MAX_RECORD = 1_000


@dataclass(frozen=True)
class Archive:
    """A wheel in the cache, and its hash."""

    path: Path
    sha256: str


class DamagedWheel(InputError):
    """A wheel in the cache that is not what was downloaded, and is not used.

    Args:
        path: The wheel.
        flaw: What is wrong with it.
        failure: Why it could not be downloaded again, if that was tried.
    """

    def __init__(self, path: Path, flaw: str, failure: str = "") -> None:
        self.path = path
        self.flaw = flaw
        problem = f"the wheel {path} is damaged: {flaw}"
        remedy = "run `ringproof upstream fetch --wheels`, or remove it to have it downloaded again"
        if failure:
            problem += f"; downloading it again failed: {failure}"
            remedy = "check the network and pip's settings, or remove the wheel"
        super().__init__("--cache", None, problem, remedy)


def release_folder(cache: Path, package: str, version: str) -> Path:
    """Return the folder for the wheels of one release."""
    return cache / canonicalize_name(package) / version


def wheels_in(folder: Path) -> Iterator[Archive | DamagedWheel]:
    """Yield the wheels of a folder, and an error for each that is damaged."""
    for path in sorted(folder.glob("*.whl")):
        try:
            yield examined(path)
        except DamagedWheel as damage:
            yield damage


def examined(path: Path) -> Archive:
    """Return a wheel of the cache with its hash.

    Raises:
        DamagedWheel: It is no zip file, or its hash is not the recorded one.
    """
    if not path.is_file():
        raise DamagedWheel(path, "it is not a regular file")
    record = path.with_name(f"{path.name}.sha256")
    try:
        digest = sha256_of(path)
        known = read_bounded(record, _MAX_RECORD) if record.is_file() else b""
    except OSError as error:
        raise DamagedWheel(path, f"it cannot be read: {error.strerror}") from error
    if not known:
        raise DamagedWheel(path, "its SHA-256 is not recorded beside it")
    if known.decode("ascii", "replace").strip() != digest:
        raise DamagedWheel(path, "its SHA-256 is not the recorded one")
    if not zipfile.is_zipfile(path):
        raise DamagedWheel(path, "it is not a zip file")
    return Archive(path, digest)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
