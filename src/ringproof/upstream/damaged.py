"""What is damaged in a repository of the cache, by the checksums that git writes."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from ringproof.files import read_bounded

_HASH_BYTES = 20
_BLOCK = 1 << 20
_MOST_BYTES = 100_000_000
_COMMITS = re.compile(rb"([0-9a-f]{40}\n)*")
_LOOSE = re.compile(r"objects/([0-9a-f]{2})/([0-9a-f]{38})")


def flaw_of(folder: Path) -> str:
    """Say what is damaged in a bare repository; empty if nothing is.

    A link in its place is damage, since whatever is fetched would be written into another folder.
    Files that are missing are not found here.
    """
    if folder.is_symlink() or not folder.is_dir():
        return "it is not a folder"
    try:
        return next(filter(None, _flaws(folder)), "")
    except (OSError, zlib.error) as error:
        return getattr(error, "strerror", None) or str(error)


def _flaws(folder: Path) -> Iterator[str]:
    """Yield for each file what is damaged in it; empty if nothing is."""
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in names):
            name = path.relative_to(folder).as_posix()
            if not stat.S_ISREG(path.lstat().st_mode):
                yield f"{name} is not a regular file"
            elif path.suffix == ".lock" or "tmp_" in path.name:
                continue  # what a killed git left is removed before the next fetch
            elif not _sound(path, name):
                yield f"{name} is not what git wrote"


def _sound(path: Path, name: str) -> bool:
    """Whether a regular file of a repository is whole; true for one without a checksum."""
    loose = _LOOSE.fullmatch(name)
    if loose is not None:
        content = zlib.decompress(read_bounded(path, _MOST_BYTES))
        return hashlib.sha1(content, usedforsecurity=False).hexdigest() == loose[1] + loose[2]
    if name.startswith("refs/") or name == "shallow":
        content = read_bounded(path, _MOST_BYTES)
        return bool(content) and _COMMITS.fullmatch(content) is not None
    if path.suffix == ".pack":
        return _ends_with_hash(path)
    if path.suffix == ".idx":
        with path.open("rb") as index, path.with_suffix(".pack").open("rb") as pack:
            index.seek(-2 * _HASH_BYTES, os.SEEK_END)
            pack.seek(-_HASH_BYTES, os.SEEK_END)
            return _ends_with_hash(path) and index.read(_HASH_BYTES) == pack.read()
    return True


def _ends_with_hash(path: Path) -> bool:
    """Whether the last bytes of a file are the SHA-1 of all before."""
    digest, left = hashlib.sha1(usedforsecurity=False), path.stat().st_size - _HASH_BYTES
    with path.open("rb") as stream:
        while left > 0:
            block = stream.read(min(_BLOCK, left))
            digest.update(block)
            left -= len(block) or left
        return stream.read() == digest.digest()
