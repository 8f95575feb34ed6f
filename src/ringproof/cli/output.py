"""How every command writes its result, and says that it takes long."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from ringproof.cli.console import HarmlessConsole
from ringproof.files import write_atomically
from ringproof.findings.printable import UNSHOWABLE, harmless

# As it stands between the quotes: line ends are the layout's, all others are escaped already.
_UNSEEN = re.compile(f"(?!\n){UNSHOWABLE.pattern}")
_READABLE = 4_000_000
"""Characters. Python indents in Python: a plan of a million sequences would take ten seconds."""


def write_json(value: Any, destination: str | Path, *, field: str = "--json") -> None:
    """Write a value as JSON to ``-`` (standard output) or to a path, atomically.

    Numbers that JSON cannot say (infinity, not a number) become ``null``; key order is kept. It is
    indented up to a size that somebody might read. Characters that cannot be seen are escaped, so
    that none can steer a terminal.

    Raises:
        InputError: The path cannot be written.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # a number that JSON cannot say
        value = _sayable(value)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(text) < _READABLE:
        text = json.dumps(value, ensure_ascii=False, indent=2)
    text = _UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], text) + "\n"
    write_text(text, destination, field=field)


def write_text(text: str, destination: str | Path, *, field: str) -> None:
    """Write a text to ``-`` (standard output) or to a path, atomically.

    Raises:
        InputError: The path cannot be written.
    """
    if destination == "-":
        echo_text(text)
    else:
        write_atomically(Path(destination), text, field=field)


def echo_text(text: str) -> None:
    """Print a text as it is into a file or a pipe; on a terminal, without what could steer it."""
    typer.echo(harmless(text) if sys.stdout.isatty() else text, nl=False)


def write_result(
    value: Any, lines: Iterable[str], destination: str, *, good: bool | None = None,
    verdict_first: bool = True,
) -> None:  # fmt: skip
    """Write a result as JSON if a destination is given, and print its lines unless that is ``-``.

    Args:
        good: Whether the result is good; ``None`` where it cannot be bad.
        verdict_first: Whether the first line says so, and gets the style of that.

    Raises:
        InputError: The path cannot be written.
        typer.Exit: The result is not good; the exit code is 1.
    """
    if destination:
        write_json(value, destination)
    if destination != "-":
        HarmlessConsole().say(lines, good=good if verdict_first else None)
    if good is not None and not good:
        raise typer.Exit(1)


def _sayable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _sayable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(item) for item in value]
    return value


@contextlib.contextmanager
def told_to_wait(what: str, *, after: float = 2.0, every: float = 5.0) -> Iterator[None]:
    """Print a line ``after`` some seconds of the block, and another one ``every`` few seconds."""
    done = threading.Event()

    def tell() -> None:
        started, pause = time.monotonic(), after
        while not done.wait(pause):
            typer.echo(f"{what}: {time.monotonic() - started:.0f} s so far", err=True)
            pause = every

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
