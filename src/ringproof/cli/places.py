"""The files and folders that a command writes are checked before it runs."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ringproof.errors import InputError, shown

FILES = (
    "--json", "--html", "--sarif", "--log", "--rank-log", "--output", "--slurm",
    "--kubernetes",
)  # fmt: skip
"""Options of all commands that name a file to write."""
FOLDERS = ("--save", "--out", "--record", "--trace")
"""Options of all commands that name a folder to write in; and ``--output`` where it is one."""
STANDARD_OUTPUT = "-"


def guard(command: Any) -> None:
    """Let each command of a tree check its outputs before it runs.

    Args:
        command: A click command or group that nobody else uses; its callbacks are replaced.
    """
    for part in getattr(command, "commands", {}).values():
        guard(part)
    named = [item for item in command.params if item.opts[0] in (*FILES, *FOLDERS)]
    options = {item.name: item.opts[0] for item in named}
    folders = {item.opts[0] for item in named if item.opts[0] in FOLDERS or item.metavar == "DIR"}
    run = command.callback
    if run is None or not options:
        return

    @functools.wraps(run)
    def checked(*arguments: Any, **given: Any) -> Any:
        places = {option: str(given[name]) for name, option in options.items() if given.get(name)}
        files = {option: place for option, place in places.items() if option not in folders}
        check_outputs(files, [value for name, value in given.items() if name not in options])
        for option in folders & places.keys():
            check_folder(Path(places[option]), option)
        return run(*arguments, **given)

    command.callback = checked


def check_outputs(places: Mapping[str, str], inputs: Iterable[Any] = ()) -> None:
    """Refuse outputs that could not be written after the run, or that would destroy something.

    Args:
        places: Path of each output by its option.
        inputs: Other values of the command line; those that name files are its inputs.

    Raises:
        InputError: An output is a folder, cannot be written, or is an input or another output.
    """
    read = {_identity(found) for found in map(_status, _named(inputs)) if _is_file(found)}
    taken: dict[Path, str] = {}
    for option, place in places.items():
        path = Path(place)
        if place == STANDARD_OUTPUT:
            if option != "--rank-log":  # for which it is standard error
                _take(taken, path, option, place)
            continue
        found = _status(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise InputError(option, f"{shown(place)} is a folder; name a file")
        if found is None and not _is_new(path):
            raise InputError(option, f"{shown(place)} cannot be written; name another place")
        if _is_file(found) and not _is_replaceable(path):
            sentence = f"{shown(place)} is read-only or in a folder that is; name another place"
            raise InputError(option, sentence)
        if found is not None and not _is_file(found):  # a terminal, a pipe or /dev/null
            continue
        if found is not None and _identity(found) in read:
            sentence = f"{shown(place)} is an input of this command; name another file"
            raise InputError(option, sentence)
        _take(taken, path.resolve(), option, place)


def check_folder(folder: Path, option: str) -> None:
    """Refuse a folder that is a file, or that cannot be made or written.

    Raises:
        InputError: It names the option.
    """
    try:
        there = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    except OSError as error:
        sentence = f"{shown(folder)} cannot be a folder ({error.strerror}); name another"
        raise InputError(option, sentence) from error
    if not there.is_dir():
        raise InputError(option, f"{shown(there)} is a file; name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(option, f"{shown(there)} cannot be written; name a writable folder")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


def _is_file(found: os.stat_result | None) -> bool:
    return found is not None and stat.S_ISREG(found.st_mode)


def _identity(found: os.stat_result | None) -> tuple[int, int]:
    return (0, 0) if found is None else (found.st_dev, found.st_ino)


def _is_replaceable(path: Path) -> bool:
    """Whether `write_atomically` would replace a file."""
    place = path.resolve()
    return bool(place.stat().st_mode & 0o222) and _takes_files(place.parent)


def _is_new(path: Path) -> bool:
    """Whether nothing is there, and a file can be."""
    try:
        path.stat()
    except FileNotFoundError:
        return _takes_files(path.resolve().parent)
    except (OSError, ValueError):
        return False
    return False


def _takes_files(folder: Path) -> bool:
    """Whether a file can be made; permissions alone do not say so of ``/proc`` and for root."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _take(taken: dict[Path, str], path: Path, option: str, place: str) -> None:
    if path in taken:
        raise InputError(option, f"{shown(place)} is where {taken[path]} writes; name another file")
    taken[path] = option


def _named(values: Iterable[Any]) -> Iterator[Path]:
    """The paths among values and lists of them."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _named(value)
        elif isinstance(value, (str, Path)) and value and "\0" not in str(value):
            yield Path(value)
