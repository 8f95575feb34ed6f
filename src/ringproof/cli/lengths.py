"""Read the lengths of a batch from a file: text, JSON, JSON lines or NPY."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from ringproof.errors import InputError, shown
from ringproof.reference.planning.lengths import (
    Lengths,
    lognormal,
    make_lengths,
    plain,
    refuse_count,
)

MAX_BYTES = 256 * 1024 * 1024
"""A file of `MAX_SEQUENCES` lengths is smaller, in any of the formats."""
_INLINE = re.compile(r"\d{1,12}(,\d{1,12})+")
_FORMS = "name a file, or write lognormal:mean=1024,sigma=1.5,n=512"
_NPY = b"\x93NUMPY"
_FORMATS = "text, JSON, JSON lines, NPY"
_SUFFIXES = MappingProxyType({".json": "json", ".jsonl": "lines", ".ndjson": "lines"})


def read_lengths(source: str, *, column: str = "") -> Lengths:
    """Read the lengths that the user named.

    Args:
        source: ``lognormal:...``; a file of text, JSON, JSON lines or NPY; ``-`` for such a file
            on standard input; or numbers separated by commas where no file has that name.
        column: Key of the lengths in JSON objects. When empty, the only key with numbers is
            taken.

    Raises:
        InputError: Names file and line of the first length that cannot be used.
    """
    kind, _, rest = source.partition(":")
    if kind == "lognormal":
        _refuse_column(column, "lognormal:")
        return lognormal(rest)
    try:
        content = read_bytes(source, "--lengths", MAX_BYTES, _FORMS)
    except InputError:
        if _INLINE.fullmatch(source):
            return make_lengths(map(int, source.split(",")), "--lengths")
        raise
    return parse(content, "standard input" if source == "-" else source, column)


def read_bytes(path: str, field: str, most: int, remedy: str = "name another file") -> bytes:
    """Read a file, or standard input for ``-``.

    Raises:
        InputError: It cannot be read, or it is too large.
    """
    name = shown(plain(path))
    try:
        if path == "-":
            content = sys.stdin.buffer.read(most + 1)
        else:
            with Path(path).open("rb") as stream:
                content = stream.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "this is not a file name"
        raise InputError(field, f"{name} cannot be read: {reason}; {remedy}") from error
    if len(content) > most:
        problem = f"{name} is larger than {most // 1024**2} MiB; name another file"
        raise InputError(field, problem)
    return content


def parse(content: bytes, source: str, column: str) -> Lengths:
    """Parse the lengths in a file.

    The format is found by the first bytes (NPY), else by the end of the name (.json, .jsonl), else
    by the first character and line.

    Raises:
        InputError: Not such a file, or a length that cannot be used; with file and line.
    """
    if not content.strip():
        raise InputError(plain(source), "the file is empty; give at least one length")
    if content.startswith(_NPY):
        _refuse_column(column, "a NPY file")
        return make_lengths(_array_values(content, source), source)
    text = _text(content, source)
    kind = _SUFFIXES.get(PurePath(source).suffix.lower()) or _recognised(text)
    if kind == "json" and _recognised(text) == "lines":  # many a data set of lines is called .json
        kind = "lines"
    if kind == "json":
        return _json(text, source, column)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    items: Iterable[tuple[int, object]]
    if kind == "lines":
        items = ((number, _loaded(line, source, number - 1)) for number, line in lines)
    else:
        _refuse_column(column, "plain text")
        items = ((number, word) for number, line in lines for word in line.split("#")[0].split())
    values, where = [], []
    for line, value in items:
        values.append(_member(value, f"{plain(source)}:{line}", column))
        where.append(line)
    return make_lengths(values, source, lines=where)


def _text(content: bytes, source: str) -> str:
    problem = f"this is none of {_FORMATS}; name another file"
    if b"\0" in content:
        raise InputError(plain(source), problem)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{plain(source)}:{line}", problem) from error


def _recognised(text: str) -> str:
    """The format of a text, by its first character and line."""
    start = text.lstrip()
    first, _, later = start.partition("\n")
    if start[0] == "[":
        return "json"
    if start[0] == "{":
        # The first line of JSON lines is a whole object, followed by another.
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            return "json"
        return "lines" if later.strip() else "json"
    return "text"


def _refuse_column(column: str, what: str) -> None:
    if column:
        raise InputError("--column", f"--column is for JSON, and {what} has no keys; leave it out")


def _tokens(value: object, place: str) -> int:
    """The number of tokens in a word or a JSON value."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str | float):
        try:
            number = float(value)
        except ValueError:
            number = math.inf
        if math.isnan(number):
            raise InputError(place, "the length is NaN; correct it or leave it out")
        if number.is_integer():
            return int(number)
    said = shown(plain(json.dumps(value) if value is None else str(value), 40))
    raise InputError(place, f"{said} is not a whole number of tokens; correct it or leave it out")


def _json(text: str, source: str, column: str) -> Lengths:
    data = _loaded(text, source, 0)
    if isinstance(data, dict):
        key, column = column or "lengths", ""
        if not isinstance(data.get(key), list):
            problem = f"there is no list {plain(key)!r}; choose with --column from: {_listed(data)}"
            raise InputError(plain(source), problem)
        data = data[key]
    elif column and isinstance(data, list) and not any(isinstance(item, dict) for item in data):
        _refuse_column(column, "a JSON list of numbers")
    if not isinstance(data, list):
        remedy = 'write [512, 1024] or {"lengths": [512, 1024]}'
        raise InputError(plain(source), f"this is not a JSON list of lengths; {remedy}")
    refuse_count(len(data), source)
    values = [_member(item, f"{plain(source)}[{index}]", column) for index, item in enumerate(data)]
    return make_lengths(values, source)


def _member(item: object, place: str, column: str) -> int:
    """The length in a value: the value itself, or one of its keys."""
    if not isinstance(item, dict):
        return _tokens(item, place)
    if column and column not in item:
        problem = f"there is no key {plain(column)!r}; choose from: {_listed(item)}"
        raise InputError(place, problem)
    numbers = [key for key, value in item.items() if isinstance(value, int | float)]
    key = column or ("length" if "length" in item else "")
    if not key:
        if len(numbers) != 1:
            problem = "several keys have numbers" if numbers else "no key has numbers"
            raise InputError(place, f"{problem}; choose one with --column")
        key = numbers[0]
    return _tokens(item[key], place)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(plain(str(name), 40) for name in list(names)[:20])


def _loaded(text: str, source: str, lines_before: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{plain(source)}:{lines_before + error.lineno}"
        raise InputError(place, f"this is not JSON: {error.msg}; correct it") from error
    except (ValueError, RecursionError) as error:
        problem = "the JSON has a number too long or lists too deep; correct it"
        raise InputError(plain(source), problem) from error


def _array_values(content: bytes, source: str) -> Iterable[int]:
    """The numbers of a NPY file, which may be of type float if none has a fraction."""
    try:
        import numpy as np
    except ImportError as error:
        remedy = "install numpy, or write one length a line"
        raise InputError(plain(source), f"a NPY file needs numpy; {remedy}") from error
    formats = np.lib.format
    try:
        stream = io.BytesIO(content)
        first = formats.read_magic(stream) == (1, 0)
        read = formats.read_array_header_1_0 if first else formats.read_array_header_2_0
        refuse_count(math.prod(read(stream)[0]), source)  # before there is memory for them
        array: Any = np.load(io.BytesIO(content), allow_pickle=False)
    except InputError:
        raise
    except (ValueError, OSError, EOFError, TypeError, SyntaxError, MemoryError) as error:
        raise InputError(plain(source), "this is a broken NPY file; write it anew") from error
    if array.ndim != 1:
        problem = f"the array has shape {array.shape}, not one dimension; flatten it"
        raise InputError(plain(source), problem)
    if array.dtype.kind not in "iuf":  # a duration is a kind of integer to numpy
        problem = f"the array holds {array.dtype}, not whole numbers; write integers"
        raise InputError(plain(source), problem)
    values = array.tolist()
    if array.dtype.kind == "f":
        return [_tokens(value, f"{plain(source)}[{n}]") for n, value in enumerate(values)]
    return list(map(int, values))
