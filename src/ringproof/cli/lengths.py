"""Read the lengths of a batch from a file: text, CSV, JSON, JSON lines, NPY or Parquet."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, BinaryIO

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
STDIN = "-"
_INLINE = re.compile(r"\d{1,12}(,\d{1,12})+")
_FORMS = "name a file, or write lognormal:mean=1024,sigma=1.5,n=512 or folder:PATH,glob=*.py"


def read_lengths(source: str, *, column: str = "", stdin: BinaryIO | None = None) -> Lengths:
    """The lengths that a user's word stands for.

    Args:
        source: ``lognormal:...`` or ``folder:...`` (see `draws`); a file of text, CSV, JSON, JSON
            lines, NPY or Parquet (see `formats`); ``-`` for such a file on standard input; or
            numbers separated by commas where no file has that name.
        column: Name of the column in CSV, JSON objects or Parquet. When empty, the only column
            with numbers is taken.
        stdin: What ``-`` reads.

    Raises:
        InputError: Names file and line of the first length that cannot be used.
    """
    kind, _, rest = source.partition(":")
    if kind in ("lognormal", "folder"):
        if column:
            raise InputError("--column", column, f"{kind}: has no columns", "leave it out")
        return lognormal(rest) if kind == "lognormal" else folder(rest)
    if source == STDIN:
        if stdin is None:
            raise InputError("--lengths", source, "there is no standard input", "name a file")
        return parse(_limited(stdin, "standard input"), "standard input", column)
    path = Path(source)
    if _INLINE.fullmatch(source) and not _exists(path):
        numbers = [int(part) for part in source.split(",")]
        return make_lengths(numbers, "--lengths")
    return parse(_content(path), source, column)


def _exists(path: Path) -> bool:
    """Whether there is such a file; a long list of numbers is not even a file's name."""
    try:
        return path.exists()
    except OSError:
        return False


def _content(path: Path) -> bytes:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            remedy = f"write folder:{plain(str(path))} for its files"
            raise InputError("--lengths", plain(str(path)), "is a folder", remedy)
        _refuse_size(status.st_size, str(path))
        with path.open("rb") as stream:
            return _limited(stream, str(path))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "is not a file name"
        raise InputError("--lengths", plain(str(path)), str(reason), _FORMS) from error


def _limited(stream: BinaryIO, name: str) -> bytes:
    content = stream.read(MAX_BYTES + 1)
    _refuse_size(len(content), name)
    return content


def _refuse_size(size: int, name: str) -> None:
    if size > MAX_BYTES:
        problem = f"more than {MAX_BYTES // 1024**2} MiB: too many lengths for one batch"
        raise InputError(plain(name), None, problem, "plan one global batch at a time")


_NPY = b"\x93NUMPY"
_PARQUET = b"PAR1"
_FORMATS = "text, CSV, JSON, JSON lines, NPY, Parquet"
_SUFFIXES = MappingProxyType(
    {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "lines", ".ndjson": "lines"}
)
_DELIMITERS = ",\t;"


def parse(content: bytes, source: str, column: str) -> Lengths:
    """The lengths in a file.

    What the content is: its first bytes say so (NPY, Parquet), else the name's end (.csv, .tsv,
    .json, .jsonl), else its first character and line.

    Raises:
        InputError: Not such a file, or a length that cannot be used; with file and line.
    """
    if not content.strip():
        raise InputError(plain(source), None, "is empty", "give at least one length")
    if content.startswith((_NPY, _PARQUET)):
        if content.startswith(_NPY):
            _refuse_column(column, source, "NPY")
            return _npy(content, source)
        return parquet(content, source, column)
    text = _text(content, source)
    kind = _SUFFIXES.get(PurePath(source).suffix.lower()) or _sniff(text)
    if kind == "json" and _sniff(text) == "lines":  # many a data set of lines is called .json
        kind = "lines"
    if kind == "csv":
        return _csv(text, source, column)
    if kind == "json":
        return _json(text, source, column)
    if kind == "lines":
        return _json_lines(text, source, column)
    _refuse_column(column, source, "plain text")
    return _plain_text(text, source)


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
    start = text.lstrip()
    if start[0] == "[":
        return "json"
    if start[0] == "{":
        # The first line of JSON lines is a whole object, followed by another.
        first, _, later = start.partition("\n")
        return "lines" if _is_json(first) and later.strip() else "json"
    first = start.split("\n", 1)[0]
    tokens = first.split()
    if first[0] == "#":
        return "text"
    is_csv = any(delimiter in first for delimiter in _DELIMITERS[::2])
    return "csv" if is_csv or (tokens and not _looks_numeric(tokens[0])) else "text"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


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


def whole(value: object, place: str) -> int:
    """A number of tokens out of a cell, a token or a JSON value.

    Raises:
        InputError: Not a whole number; ``place`` says where.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = math.nan
    if isinstance(value, str | float):
        try:
            number = float(value)
        except ValueError:
            pass
        else:
            if math.isnan(number):
                raise InputError(place, None, "length is NaN", "correct it or leave it out")
            if number.is_integer():
                return int(number)
    shown = plain(str(value), 40) if value not in (None, "") else "nothing"
    raise InputError(place, shown, "is not a whole number of tokens", "correct it or leave it out")


def _collect(items: Iterable[tuple[int, object]], source: str) -> Lengths:
    """Lengths of values with their lines."""
    values, lines = [], []
    for line, value in items:
        values.append(whole(value, f"{plain(source)}:{line}"))
        lines.append(line)
    return make_lengths(values, source, lines=lines)


def _plain_text(text: str, source: str) -> Lengths:
    """Numbers between white space; what follows a # on a line is a remark."""
    lines = enumerate(text.split("\n"), 1)
    tokens = ((number, token) for number, line in lines for token in line.split("#")[0].split())
    return _collect(tokens, source)


def _csv(text: str, source: str, column: str) -> Lengths:
    first = text.lstrip().split("\n", 1)[0]
    delimiter = max(_DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        place = f"{plain(source)}:{reader.line_num}"
        raise InputError(place, None, f"is not CSV: {error}", f"give one of: {_FORMATS}") from error
    header = [cell.strip() for cell in rows[0][1]]
    if all(map(_looks_numeric, header)):
        names = [str(index + 1) for index in range(len(header))]
    else:
        names, rows = header, rows[1:]
    if not rows:
        raise InputError(plain(source), None, "has a header and no lengths", "add lengths")
    for line, row in rows:
        if any(cell.strip() for cell in row[len(names) :]):
            problem = f"has {len(row)} cells, not {len(names)}: a comma within a number?"
            raise InputError(f"{plain(source)}:{line}", None, problem, "correct the line")
    cells = [
        [row[index] if index < len(row) else "" for _, row in rows] for index in range(len(names))
    ]
    index = choose_column(names, lambda index: _is_numeric(cells[index]), source, column)
    numbers = [line for line, _ in rows]
    return _collect(zip(numbers, (cell.strip() for cell in cells[index]), strict=True), source)


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column is one of numbers, some of which may be bad: the first ones decide."""
    filled = [cell for cell in cells[:1000] if cell.strip()]
    return bool(filled) and sum(map(_looks_numeric, filled)) * 2 > len(filled)


def _json(text: str, source: str, column: str) -> Lengths:
    data = _loaded(text, source, 0)
    if isinstance(data, dict):
        key = column or "lengths"
        if not isinstance(data.get(key), list):
            keys = ", ".join(plain(str(name), 40) for name in list(data)[:20])
            problem = f"has no list {plain(key)!r}"
            raise InputError(plain(source), None, problem, f"choose with --column from: {keys}")
        data = data[key]
    elif column and isinstance(data, list) and not any(isinstance(item, dict) for item in data):
        _refuse_column(column, source, "a JSON list")
    if not isinstance(data, list):
        remedy = 'write [512, 1024] or {"lengths": [512, 1024]}'
        raise InputError(plain(source), None, "is not a JSON list of lengths", remedy)
    refuse_count(len(data), source)
    values = [_member(item, f"{plain(source)}[{index}]", column) for index, item in enumerate(data)]
    return make_lengths(values, source)


def _json_lines(text: str, source: str, column: str) -> Lengths:
    """One number, or one object with the length in a key, per line."""
    values, lines = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            item = _loaded(line, source, number - 1)
            values.append(_member(item, f"{plain(source)}:{number}", column))
            lines.append(number)
    return make_lengths(values, source, lines=lines)


def _member(item: Any, place: str, column: str) -> int:
    """The length that a JSON value says: itself, or one of its keys."""
    if not isinstance(item, dict):
        return whole(item, place)
    numbers = [key for key, value in item.items() if isinstance(value, int | float)]
    if column and column not in item:
        keys = ", ".join(plain(str(name), 40) for name in list(item)[:20])
        raise InputError(place, None, f"has no key {plain(column)!r}", f"choose from: {keys}")
    if column:
        return whole(item[column], place)
    if "length" in item:
        return whole(item["length"], place)
    if len(numbers) != 1:
        problem = f"{'several keys have' if numbers else 'no key has'} numbers"
        raise InputError(place, None, problem, "choose with --column")
    return whole(item[numbers[0]], place)


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
    try:
        stream = io.BytesIO(content)
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else (np.lib.format.read_array_header_2_0)
        )
        shape, _, _ = read(stream)
        refuse_count(math.prod(shape), source)
        array: npt.NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except InputError:
        raise
    except (ValueError, OSError, EOFError, TypeError, SyntaxError, MemoryError) as error:
        raise InputError(plain(source), None, "is a broken NPY file", "write it anew") from error
    if array.ndim != 1:
        problem = f"has shape {array.shape}, not one dimension"
        raise InputError(plain(source), None, problem, "flatten it")
    return whole_array(array, source)


def whole_array(array: npt.NDArray[Any], source: str) -> Lengths:
    """Lengths out of an array of whole numbers; of type float too, if none has a fraction.

    Raises:
        InputError: Another type, NaN, or a fraction; names its place.
    """
    if np.issubdtype(array.dtype, np.floating):
        bad = np.flatnonzero(array != np.floor(array))
        for index in bad[:1]:
            whole(float(array[index]), f"{plain(source)}[{index}]")
        array = np.clip(array.astype(np.float64), -1.0, 1e15)
    elif array.dtype.kind not in "iu":  # a duration is a kind of integer to numpy
        problem = f"holds {array.dtype}, not whole numbers"
        raise InputError(plain(source), None, problem, "write integers")
    elif array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(10**15))
    return make_lengths(array.astype(np.int64), source)


_NAMES = ("length", "lengths")


def choose_column(
    names: Sequence[str], is_numeric: Callable[[int], bool], source: str, column: str
) -> int:
    """The column that was named, or the only one with numbers.

    Raises:
        InputError: No such column, or several that could be meant.
    """
    shown = ", ".join(plain(name, 40) for name in names[:20])
    if column:
        if column not in names:
            problem = f"is not a column of {plain(source)}"
            raise InputError("--column", plain(column), problem, f"choose from: {shown}")
        return list(names).index(column)
    found = [index for index in range(len(names)) if is_numeric(index)]
    called = [index for index in found if names[index].lower() in _NAMES]
    if len(called) == 1:
        return called[0]
    if len(found) != 1:
        problem = f"{'several columns have' if found else 'no column has'} numbers"
        raise InputError(plain(source), None, problem, f"choose with --column from: {shown}")
    return found[0]


def parquet(content: bytes, source: str, column: str) -> Lengths:
    """The lengths in a column of numbers; of lists (token ids), the length of each.

    Raises:
        InputError: pyarrow is not installed, the file is broken, no such column, or a value
            missing; names the first row.
    """
    try:
        arrow = importlib.import_module("pyarrow")
        reader = importlib.import_module("pyarrow.parquet")
        compute = importlib.import_module("pyarrow.compute")
    except ImportError as error:
        remedy = "install pyarrow, or write the column as CSV or NPY"
        raise InputError(
            plain(source), None, "Parquet needs the package pyarrow", remedy
        ) from error
    try:
        file = reader.ParquetFile(io.BytesIO(content))
        refuse_count(file.metadata.num_rows, source)
        schema = file.schema_arrow
        index = choose_column(
            schema.names, lambda index: _is_number(arrow, schema.types[index]), source, column
        )
        values = file.read(columns=[schema.names[index]]).column(0).combine_chunks()
    except (arrow.ArrowException, OSError) as error:
        raise InputError(
            plain(source), None, "is a broken Parquet file", "write it anew"
        ) from error
    name = f"{plain(source)}: {plain(schema.names[index], 40)}"
    if values.null_count:
        first = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{name}[{first}]", None, "has no value", "fill it or leave it out")
    if arrow.types.is_list(values.type) or arrow.types.is_large_list(values.type):
        values = compute.list_value_length(values)
    return whole_array(values.to_numpy(zero_copy_only=False), name)


def _is_number(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_integer(kind) or arrow.types.is_floating(kind))
