"""A small shared file in which a rank says what it waits for, readable while it hangs."""

from __future__ import annotations

import mmap
from pathlib import Path

COUNTER_BYTES = 8
TEXT_BYTES = 1016


class Board:
    """The writing side, held by one rank."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(COUNTER_BYTES + TEXT_BYTES))
        with path.open("r+b") as stream:
            self._memory = mmap.mmap(stream.fileno(), 0)
        self._count = 0

    def write(self, text: str = "") -> None:
        """Say what the rank waits for; without a text, that it waits no longer."""
        self._count += 1
        self._memory[COUNTER_BYTES:] = text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        self._memory[:COUNTER_BYTES] = self._count.to_bytes(COUNTER_BYTES, "little")


def read(path: Path) -> tuple[int, str]:
    """Return the number of changes so far, and what the rank waits for (empty: nothing)."""
    try:
        if not path.is_file():
            return 0, ""
        with path.open("rb") as stream:
            data = stream.read(COUNTER_BYTES + TEXT_BYTES)
    except OSError:
        return 0, ""
    text = data[COUNTER_BYTES:].rstrip(b"\0").decode(errors="replace")
    return int.from_bytes(data[:COUNTER_BYTES], "little"), text
