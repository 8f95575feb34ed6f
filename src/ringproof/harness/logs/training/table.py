"""CSV with a header: as written by a script, or exported from Weights & Biases or TensorBoard."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType

from ringproof.harness.logs.training.columns import GRAD_NORM, LOSS, STEP, Columns, plain
from ringproof.harness.logs.training.reading import Reading, number, step_number
from ringproof.harness.logs.training.source import DELIMITERS, Source

_NOT_TRAINING = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|test)(?:[^a-z]|$)")
# Weights & Biases names a column "RUN - NAME", and the extremes of the points it merged
# "RUN - NAME__MIN" and "__MAX".
_ENDINGS = MappingProxyType({LOSS: ("loss",), GRAD_NORM: ("grad_norm", "gradnorm")})


def read_table(source: Source, columns: Columns) -> Reading:
    """All rows of a CSV file that have a step.

    Raises:
        InputError: no header, no column for the step or any series, or two that could be it.
    """
    rows = _rows(source)
    header = next(rows, None)
    if header is None:
        raise source.refused("empty", "name a training log")
    if all(number(cell) is not None for cell in header):
        raise source.refused("a CSV file without a header", "name the columns in its first line")
    reading = Reading.of(columns)
    reading.see(header)
    step = _column(source, header, columns, STEP)
    if step is None:
        raise _missing(source, header, STEP)
    places = {name: _column(source, header, columns, name) for name in columns.series}
    places = _value_alone(header, places)
    found = {name: place for name, place in places.items() if place is not None}
    if not found:
        raise _missing(source, header, columns.series[0])
    for name, place in found.items():
        reading.builders[name].column = header[place].strip()
    _read_rows(rows, reading, step, found)
    return reading


def _read_rows(
    rows: Iterator[list[str]], reading: Reading, step: int, places: dict[str, int]
) -> None:
    adding = [(reading.builders[name].add, place) for name, place in places.items()]
    width = 1 + max(step, *places.values())
    for line, row in enumerate(rows, 2):
        at = step_number(row[step]) if len(row) >= width else None
        if at is None:
            if any(row):
                reading.damage(line)
            continue
        reading.records += 1
        for add, place in adding:
            cell = row[place]
            value = number(cell) if cell else None  # an empty cell is no value, NaN is written
            if value is not None:
                add(at, value)


def _rows(source: Source) -> Iterator[list[str]]:
    lines = (line.decode("utf-8", errors="replace").replace("\0", "\ufffd") for line in source)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        return
    delimiter = max(DELIMITERS, key=first.count)
    try:
        yield next(csv.reader([first], delimiter=delimiter))
        yield from csv.reader(lines, delimiter=delimiter)
    except csv.Error as error:
        raise source.refused(f"not CSV: {error}", "repair it, or give its --format") from error


def _column(source: Source, header: Sequence[str], columns: Columns, wanted: str) -> int | None:
    """The place of a column: by the user's names, by usual names, or by how its name ends."""
    spelled = [plain(name) for name in header]
    names = [plain(name) for name in columns.names(wanted)]
    for name in names:
        if name in spelled:
            return spelled.index(name)
    if wanted in columns.chosen:
        raise _missing(source, header, wanted)
    endings = _ENDINGS.get(wanted)
    likely = [
        place
        for place, name in enumerate(spelled)
        if endings is not None and name.endswith(endings) and not _NOT_TRAINING.search(name)
    ]
    if len(likely) > 1:
        named = " or ".join(header[place].strip() for place in likely[:3])
        remedy = f"choose with --columns '{wanted}={header[likely[0]].strip()}'"
        raise source.refused(f"{wanted} could be {named}", remedy)
    return likely[0] if likely else None


def _value_alone(header: Sequence[str], places: dict[str, int | None]) -> dict[str, int | None]:
    """TensorBoard exports one quantity as ``Value``: taken for the loss unless told otherwise."""
    spelled = [plain(name) for name in header]
    if "value" in spelled and LOSS in places and all(place is None for place in places.values()):
        return {**places, LOSS: spelled.index("value")}
    return places


def _missing(source: Source, header: Sequence[str], wanted: str) -> Exception:
    held = ", ".join(name.strip() for name in header[:8])
    more = ", ..." if len(header) > 8 else ""
    return source.refused(
        f"no column for {wanted} among {held}{more}", f"name it: --columns '{wanted}=COLUMN'"
    )
