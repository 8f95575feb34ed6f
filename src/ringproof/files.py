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

    A link stays, and what it leads to is replaced. What is no file (a terminal, ``/dev/null``, a
    pipe) cannot be replaced without destroying it, and is written to as it is.

    Args:
        path: Where; its folder exists.
        content: What; text is written as UTF-8.
        field: The option that named the path, for the message.
        mode: Permissions of the file.

    Raises:
        InputError: The file cannot be written there.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        place = path.resolve() if path.is_symlink() else path
        if place.exists() and not place.is_file() and not place.is_dir():
            place.write_bytes(data)
            return
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            temporary.chmod(mode)
            temporary.replace(place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:  # before Python 3.13 links in a circle are the latter
        problem = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise InputError(field or "file", path, problem, "name a writable place") from error
