"""How every command writes JSON: to standard output, or to a file that is whole or absent."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import typer

from ringproof.errors import InputError


def write_json(value: Any, destination: str) -> None:
    """Write a value as JSON to ``-`` (standard output) or to a path, atomically.

    Numbers that JSON cannot say (infinity, not a number) become ``null``.

    Raises:
        InputError: The path cannot be written.
    """
    text = json.dumps(_sayable(value), indent=2, allow_nan=False) + "\n"
    if destination == "-":
        typer.echo(text, nl=False)
        return
    path = Path(destination)
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        raise InputError(
            "--json", destination, error.strerror or "not writable", "choose another path"
        ) from error


def _sayable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _sayable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(item) for item in value]
    return value
