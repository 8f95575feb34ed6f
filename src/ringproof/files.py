"""Files that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ringproof.errors import InputError


def write_atomically(
    path: Path, content: str | bytes, *, field: str = "", mode: int = 0o644
) -> None:
    """Write to a temporary file in the same folder, then rename it into place.

    Args:
        path: Where; its folder exists.
        content: What; text is written as UTF-8.
        field: The option that named the path, for the message.
        mode: Permissions of the file.

    Raises:
        InputError: The file cannot be written there.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content.encode() if isinstance(content, str) else content)
            temporary.chmod(mode)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise InputError(field or "file", path, problem, "name a writable place") from error
