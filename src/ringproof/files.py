"""Files that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ringproof.errors import InputError


def write_atomically(path: Path, text: str, *, field: str = "") -> None:
    """Write UTF-8 text to a temporary file in the same folder, then rename it into place.

    Args:
        path: Where; its folder exists.
        text: What.
        field: The option that named the path, for the message.

    Raises:
        InputError: The file cannot be written there.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise InputError(field or "file", path, problem, "name a writable place") from error
