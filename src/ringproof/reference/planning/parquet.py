"""Lengths out of a column of a Parquet file; needs pyarrow."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np

from ringproof.errors import InputError
from ringproof.reference.planning.columns import choose_column
from ringproof.reference.planning.formats import whole_array
from ringproof.reference.planning.lengths import Lengths, plain, refuse_count


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
