"""Checks loose git objects before libgit2 opens them.

libgit2 1.9 never returns from the header of a loose commit, tree or tag whose file is truncated: it
inflates in an endless loop in C, where Python's signal handlers do not run. An interrupted copy
leaves such files.
"""

from __future__ import annotations

import zlib
from pathlib import Path

_BLOCK = 1 << 16


class LooseObjects:
    """The loose objects of a repository. libgit2 checks packed objects itself.

    Args:
        git_folder: ``.git`` of the repository or of one of its linked work trees.
    """

    def __init__(self, git_folder: Path) -> None:
        self._folder = _common_folder(git_folder) / "objects"

    def refuse_truncated(self, object_id: str) -> None:
        """Refuse a truncated object. Complete, packed and missing objects are accepted.

        Raises:
            OSError: The object is not a regular file or cannot be read.
            ValueError: The file is truncated or is not a zlib stream.
        """
        path = self._folder / object_id[:2] / object_id[2:]
        if not path.exists():
            return
        if not path.is_file():
            raise OSError(f"{object_id} is not a regular file")
        inflater = zlib.decompressobj()
        with path.open("rb") as stream:
            while not inflater.eof:
                block = inflater.unconsumed_tail or stream.read(_BLOCK)
                try:
                    made = inflater.decompress(block, _BLOCK)  # in parts, since its size is unknown
                except zlib.error as error:
                    raise ValueError(f"the file of object {object_id}: {error}") from error
                if not (block or made or inflater.eof):
                    raise ValueError(f"the file of object {object_id} is cut short")


def _common_folder(git_folder: Path) -> Path:
    pointer = git_folder / "commondir"
    try:
        return git_folder / pointer.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return git_folder
