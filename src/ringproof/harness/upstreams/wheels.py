"""Reads the list of wheels that the tests of a repository need: ``cards/wheels.txt``.

The file has pip's form of requirements with hashes, so that ``pip download --require-hashes`` could
read it, too. A release has one hash for each of its wheels that may be used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ringproof.errors import InputError
from ringproof.files import read_input

WHEELS_FILE = "wheels.txt"
"""Name of the list, which lies in the folder of the cards."""

_MAX_BYTES = 1_000_000
_LINE = re.compile(
    r"(?P<package>[a-z0-9]([a-z0-9-]*[a-z0-9])?)==(?P<version>[0-9][0-9a-z.]*)"
    r"(?P<hashes>(\s+--hash=sha256:[0-9a-f]{64})+)"
)


@dataclass(frozen=True)
class PinnedWheel:
    """A release and the SHA-256 values of its wheels that may be used."""

    package: str
    version: str
    sha256: tuple[str, ...]

    @property
    def spec(self) -> str:
        """The release as ``pip:PACKAGE==VERSION``."""
        return f"pip:{self.package}=={self.version}"


def read_wheels(path: Path) -> tuple[PinnedWheel, ...]:
    """Return the releases of a list in the order of its lines.

    Raises:
        InputError: The file cannot be read, or a line is not a release with hashes.
    """
    data = read_input(path, _MAX_BYTES, remedy="name the folder of the skills with --skills")
    text = data.decode("utf-8", "replace").replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            remedy = "write PACKAGE==VERSION --hash=sha256:DIGEST"
            raise InputError(str(path), line, "is not a release with hashes", remedy)
        hashes = tuple(re.findall(r"sha256:([0-9a-f]{64})", match["hashes"]))
        found.append(PinnedWheel(match["package"], match["version"], hashes))
    return tuple(found)
