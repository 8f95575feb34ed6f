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

import numpy as np
import numpy.typing as npt

from ringproof.errors import InputError
from ringproof.reference.planning.lengths import (
    Lengths,
    folder,
    lognormal,
    make_lengths,
    plain,
    refuse_count,
)

MAX_BYTES = 256 * 1024 * 1024
"""A file of `MAX_SEQUENCES` lengths is smaller, in any of the formats."""
_INLINE = re.compile(r"\d{1,12}(,\d{1,12})+")
_FORMS = "name a file, or write lognormal:mean=1024,sigma=1.5,n=512 or folder:PATH,glob=*.py"
_NPY = b"\x93NUMPY"
_FORMATS = "text, JSON, JSON lines, NPY"
_SUFFIXES = MappingProxyType({".json": "json", ".jsonl": "lines", ".ndjson": "lines"})


def read_lengths(source: str, *, column: str = "") -> Lengths:
    """Read the lengths that the user named.

    Args:
        source: ``lognormal:...`` or ``folder:...``; a file of text, JSON, JSON lines or NPY;
            ``-`` for such a file on standard input; or numbers separated by commas where no file
            has that name.
        column: Key of the lengths in JSON objects. When empty, the only key with numbers is
            taken.

    Raises:
        InputError: Names file and line of the first length that cannot be used.
    """
    kind, _, rest = source.partition(":")
    if kind in ("lognormal", "folder"):
        if column:
            raise InputError("--column", column, f"{kind}: has no columns", "leave it out")
        return lognormal(rest) if kind == "lognormal" else folder(rest)
    try:
        content = read_bytes(source, "--lengths", MAX_BYTES, _FORMS)
    except InputError:
        if _INLINE.fullmatch(source):
            return make_lengths([int(part) for part in source.split(",")], "--lengths")
        raise
    return parse(content, "standard input" if source == "-" else source, column)


def read_bytes(path: str, field: str, most: int, remedy: str = "name another file") -> bytes:
    """Read a file, or standard input for ``-``.

    Raises:
        InputError: It cannot be read, or it is too large.
    """
    try:
        if path == "-":
            content = sys.stdin.buffer.read(most + 1)
        else:
            with Path(path).open("rb") as stream:
                content = stream.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not a file name"
        raise InputError(field, plain(path), str(reason), remedy) from error
    if len(content) > most:
        problem = f"is larger than {most // 1024**2} MiB"
        raise InputError(field, plain(path), problem, "name another file")
    return content


def parse(content: bytes, source: str, column: str) -> Lengths:
    """Parse the lengths in a file.

    The format is found by the first bytes (NPY), else by the end of the name (.json, .jsonl), else
    by the first character and line.

    Raises:
        InputError: Not such a file, or a length that cannot be used; with file and line.
    """
    if not content.strip():
        raise InputError(plain(source), None, "is empty", "give at least one length")
    if content.startswith(_NPY):
        _refuse_column(column, source, "NPY")
        return _npy(content, source)
    text = _text(content, source)
    kind = _SUFFIXES.get(PurePath(source).suffix.lower()) or _sniff(text)
    if kind == "json" and _sniff(text) == "lines":  # many a data set of lines is called .json
        kind = "lines"
    if kind == "json":
        return _json(text, source, column)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    items: Iterable[tuple[int, object]]
    if kind == "lines":
        items = ((number, _loaded(line, source, number - 1)) for number, line in lines)
    else:
        _refuse_column(column, source, "plain text")
        items = ((number, word) for number, line in lines for word in line.split("#")[0].split())
    values, where = [], []
    for line, value in items:
        values.append(_member(value, f"{plain(source)}:{line}", column))
        where.append(line)
    return make_lengths(values, source, lines=where)


def _text(content: bytes, source: str) -> str:
    problem = f"is none of: {_FORMATS}"
    if b"\0" in content:
        raise InputError(plain(source), None, problem, "name another file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{plain(source)}:{line}", None, problem, "name another file") from error


def _sniff(text: str) -> str:
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


def _refuse_column(column: str, source: str, what: str) -> None:
    if column:
        problem = f"{what} has no columns: {plain(source)}"
        raise InputError("--column", plain(column), problem, "leave --column out")


def _looks_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _whole(value: object, place: str) -> int:
    """The number of tokens in a cell, a word or a JSON value."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str | float) and _looks_numeric(str(value)):
        number = float(value)
        if math.isnan(number):
            raise InputError(place, None, "length is NaN", "correct it or leave it out")
        if number.is_integer():
            return int(number)
    shown = plain(str(value), 40) if value not in (None, "") else "nothing"
    raise InputError(place, shown, "is not a whole number of tokens", "correct it or leave it out")


def _json(text: str, source: str, column: str) -> Lengths:
    data = _loaded(text, source, 0)
    if isinstance(data, dict):
        key, column = column or "lengths", ""
        if not isinstance(data.get(key), list):
            problem, remedy = f"has no list {plain(key)!r}", "choose with --column from: "
            raise InputError(plain(source), None, problem, remedy + _listed(data))
        data = data[key]
    elif column and isinstance(data, list) and not any(isinstance(item, dict) for item in data):
        _refuse_column(column, source, "a JSON list")
    if not isinstance(data, list):
        remedy = 'write [512, 1024] or {"lengths": [512, 1024]}'
        raise InputError(plain(source), None, "is not a JSON list of lengths", remedy)
    refuse_count(len(data), source)
    values = [_member(item, f"{plain(source)}[{index}]", column) for index, item in enumerate(data)]
    return make_lengths(values, source)


def _member(item: object, place: str, column: str) -> int:
    """The length in a value: the value itself, or one of its keys."""
    if not isinstance(item, dict):
        return _whole(item, place)
    if column and column not in item:
        problem = f"has no key {plain(column)!r}"
        raise InputError(place, None, problem, f"choose from: {_listed(item)}")
    numbers = [key for key, value in item.items() if isinstance(value, int | float)]
    key = column or ("length" if "length" in item else "")
    if not key:
        if len(numbers) != 1:
            problem = f"{'several keys have' if numbers else 'no key has'} numbers"
            raise InputError(place, None, problem, "choose with --column")
        key = numbers[0]
    return _whole(item[key], place)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(plain(str(name), 40) for name in list(names)[:20])


def _loaded(text: str, source: str, lines_before: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{plain(source)}:{lines_before + error.lineno}"
        raise InputError(place, None, f"is not JSON: {error.msg}", "correct it") from error
    except (ValueError, RecursionError) as error:
        problem = "is JSON with a number too long or lists too deep"
        raise InputError(plain(source), None, problem, "correct it") from error


def _npy(content: bytes, source: str) -> Lengths:
    formats = np.lib.format
    try:
        stream = io.BytesIO(content)
        first = formats.read_magic(stream) == (1, 0)
        read = formats.read_array_header_1_0 if first else formats.read_array_header_2_0
        refuse_count(math.prod(read(stream)[0]), source)
        array: npt.NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except InputError:
        raise
    except (ValueError, OSError, EOFError, TypeError, SyntaxError, MemoryError) as error:
        raise InputError(plain(source), None, "is a broken NPY file", "write it anew") from error
    if array.ndim != 1:
        problem = f"has shape {array.shape}, not one dimension"
        raise InputError(plain(source), None, problem, "flatten it")
    return _whole_array(array, source)


def _whole_array(array: npt.NDArray[Any], source: str) -> Lengths:
    """Lengths from an array of whole numbers, also of type float if none has a fraction."""
    if np.issubdtype(array.dtype, np.floating):
        for index in np.flatnonzero(array != np.floor(array))[:1]:
            _whole(float(array[index]), f"{plain(source)}[{index}]")
        array = np.clip(array.astype(np.float64), -1.0, 1e15)
    elif array.dtype.kind not in "iu":  # a duration is a kind of integer to numpy
        problem = f"holds {array.dtype}, not whole numbers"
        raise InputError(plain(source), None, problem, "write integers")
    elif array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(10**15))
    return make_lengths(array.astype(np.int64), source)
