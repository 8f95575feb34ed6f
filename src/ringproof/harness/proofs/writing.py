"""Files that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from ringproof.errors import InputError


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text to a temporary file in the same folder, then rename it into place.

    Raises:
        InputError: The file cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
        raise InputError(str(path), None, problem, "name a writable place") from error


def write_json_file(path: Path, value: object) -> None:
    """Write a value as indented JSON, atomically; key order is kept, so that diffs stay small."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
