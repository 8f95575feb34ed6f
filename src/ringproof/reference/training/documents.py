"""Documents as bytes, with a vocabulary of 256. They are read only where they are needed."""

from __future__ import annotations

import itertools
import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ringproof.errors import InputError
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.lengths import folder

Tokens = npt.NDArray[np.unsignedinteger]
"""Token ids of one document, of any unsigned type."""
VOCABULARY = 256
_DEFINITION = re.compile(rb"\n\n(?=@|def |class |async def )")
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})


class Documents(Protocol):
    """Documents whose lengths are known before they are read. They are the same on every rank."""

    @property
    def source(self) -> str:
        """What the user named."""

    @property
    def lengths(self) -> IntArray:
        """Number of tokens of each document, shape ``(n,)``. Each is at least 1."""

    def name(self, index: int) -> str:
        """Return the name of a document for messages."""

    def read(self, index: int) -> Tokens:
        """Read the tokens of a document, shape ``(lengths[index],)``.

        Raises:
            InputError: The document cannot be read, or its length has changed.
        """


@dataclass(frozen=True)
class Files:
    """Documents that are files or parts of files.

    Args:
        source: Source as the user named it.
        paths: File of each document.
        lengths: Bytes of each document.
        starts: Offset of each document in its file; 0 when ``None``.
    """

    source: str
    paths: tuple[str, ...]
    lengths: IntArray
    starts: IntArray | None = None

    def name(self, index: int) -> str:
        """Return the path and the offset in the file."""
        start = 0 if self.starts is None else int(self.starts[index])
        return f"{self.paths[index]}, byte {start}" if start else self.paths[index]

    def read(self, index: int) -> Tokens:
        """See :class:`Documents`."""
        length = int(self.lengths[index])
        try:
            with Path(self.paths[index]).open("rb") as file:
                if self.starts is not None:
                    file.seek(int(self.starts[index]))
                content = file.read(length)
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise InputError(self.paths[index], None, problem, "leave it out") from error
        if len(content) < length:
            problem = f"had {length} bytes when the run began"
            raise InputError(self.paths[index], len(content), problem, "do not change the data")
        return np.frombuffer(content, np.uint8)


@dataclass(frozen=True)
class Selection:
    """A subset of other documents.

    Args:
        whole: Documents to choose from.
        indices: Indices of the chosen documents, in order.
    """

    whole: Documents
    indices: IntArray

    @property
    def source(self) -> str:
        """What the user named."""
        return self.whole.source

    @property
    def lengths(self) -> IntArray:
        """Tokens of each."""
        return self.whole.lengths[self.indices]

    def name(self, index: int) -> str:
        """Return the name of a document."""
        return self.whole.name(int(self.indices[index]))

    def read(self, index: int) -> Tokens:
        """See :class:`Documents`."""
        return self.whole.read(int(self.indices[index]))


def standard_library(longest: int) -> Files:
    """Return the ``.py`` files of the interpreter's standard library, sorted by path.

    Installed packages and empty files are left out.

    Args:
        longest: Bytes that are taken of a file at most.

    Raises:
        InputError: There are no files because the interpreter has its library in an archive.
    """
    return _files("stdlib", _library_paths(), longest)


def library_definitions(longest: int) -> Files:
    """Return the top-level definitions of the standard library, and the text before the first one.

    Half of them have at most about 500 bytes, and one in a hundred has 30,000 or more (Python
    3.11). So they have a long tail, while most files are longer than a tiny model's context.

    Args:
        longest: Maximum bytes per definition.

    Raises:
        InputError: See :func:`standard_library`.
    """
    paths, starts, lengths = [], [], []
    for path in _library_paths():
        content = Path(path).read_bytes()
        cuts = [0, *(found.end() for found in _DEFINITION.finditer(content)), len(content)]
        for start, stop in itertools.pairwise(cuts):
            if stop > start:
                paths.append(path)
                starts.append(start)
                lengths.append(min(stop - start, longest))
    return Files(
        "stdlib:definitions", tuple(paths), np.array(lengths, np.int64), np.array(starts, np.int64)
    )


def _library_paths() -> list[str]:
    root = Path(sysconfig.get_path("stdlib"))
    found: list[tuple[str, str]] = []
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _FOREIGN]
        paths = [Path(place, name) for name in names if name.endswith(".py")]
        found += [(path.relative_to(root).as_posix(), str(path)) for path in paths]
    if not found:
        raise InputError("data", "stdlib", "no file of it is on disk", "use folder:PATH")
    return [path for _, path in sorted(found)]


def folder_files(options: str, longest: int) -> Files:
    """Return the files of a folder. The planner accepts the same options for lengths.

    Args:
        options: ``PATH`` or ``PATH,glob=*.md``.
        longest: Bytes that are taken of a file at most.

    Raises:
        InputError: There is no such folder, an option is wrong, or no file matches.
    """
    try:
        found = folder(f"{options},bytes-per-token=1,max={longest}")
    except InputError as error:  # the planner's own option is another
        field = "data" if error.field.startswith("--") else error.field
        remedy = "write folder:PATH or folder:PATH,glob=*.md"
        raise InputError(field, error.value, error.problem, remedy) from error
    return Files(f"folder:{options}", found.names, found.values)


def _files(source: str, paths: Sequence[str], longest: int) -> Files:
    sizes = [(path, Path(path).stat().st_size) for path in paths]
    taken = [(path, min(size, longest)) for path, size in sizes if size]
    lengths = np.array([length for _, length in taken], np.int64)
    return Files(source, tuple(path for path, _ in taken), lengths)
