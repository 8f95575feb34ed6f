"""Read a training log: JSON lines, Megatron-LM's text log, or CSV, in bounded memory.

Neither compression nor format is taken from the file's name: gzip is known by its first bytes, the
format by the first lines.

JSON lines: the trainer's own log, and any other with one object per step.

The trainer writes ``{"kind": "run", ...}`` once, then ``{"kind": "step", "step": 1, "loss": ...,
"grad_norm": ...}`` for each step and ``{"kind": "evaluation", "step": 10, "loss": ...}``, with
every digit of every float. Other writers leave ``kind`` out; unknown kinds and keys are passed
over. A name may lead into nested objects: ``losses.lm``.

The iteration lines of Megatron-LM and Megatron-Bridge.

Written by ``training_log`` (Megatron-LM ``megatron/training/training.py``, read at releases 0.16
to main and dev; Megatron-Bridge ``training/utils/train_utils.py``) on the last rank::

    [TIME] iteration       10/     100 | consumed samples: ... | learning rate: 1.000000E-04 |
    global batch size:  8 | lm loss: 1.234567E+00 | loss scale: 1.0 | grad norm: 0.123 |
    number of skipped iterations:   0 | number of nan iterations:   0 |   (on one line)

* Every field ends with a bar, so one without is a line that was cut.
* A loss is the mean over the iterations since the line before, as ``.6E``; the gradient norm is
  that of the last one, as ``.3f``.
* A loss that is not a number or negative is left out of the line (the test is ``avg > 0.0`` in
  releases, ``avg >= 0.0`` on main): a loss that is missing from a whole line is read as not a
  number, unless iterations were skipped. Where all of an interval were skipped main prints a loss
  of 0, which is none either.
* Colours, prefixes of launchers and the lines of several ranks glued together do not matter.

CSV has a header, as written by a script or exported from Weights & Biases or TensorBoard.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from pydantic_core import from_json

from ringproof.harness.logs.lines import Origin, opened
from ringproof.harness.logs.training.series import (
    EVALUATION,
    GRAD_NORM,
    LOSS,
    STEP,
    Columns,
    Series,
    number,
    plain,
    printed_precision,
    step_number,
)

JSONL, MEGATRON, CSV = "jsonl", "megatron", "csv"
FORMATS = (JSONL, MEGATRON, CSV)

PIECE_BYTES = 1 << 20
"""A line longer than this comes in pieces: it is no line of a training log."""
_HEAD_BYTES, _HEAD_LINES = 256 << 10, 2000
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
DELIMITERS = (",", ";", "\t")
_STEPS = frozenset({b"step", b"_step", b"global_step", b"iteration", b"iter"})
_NUMBER = re.compile(rb"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_UTF8_MARK = b"\xef\xbb\xbf"

# What begins a line of Megatron-LM's training_log (megatron/training/training.py) and of
# Megatron-Bridge's (training/utils/train_utils.py); the same in all releases read.
ITERATION = re.compile(rb"\biteration +([0-9]{1,15})/ *[0-9]{1,15} +\|")


def recognised(head: list[bytes]) -> str:
    """The format of a log that begins with these lines.

    An iteration line anywhere makes it Megatron's, even inside JSON, as container engines wrap it.
    Else it is JSON lines if the first line that says anything is an object, or most lines are; or
    CSV if columns of numbers follow. What is none of these may be a long preamble, so it is
    Megatron's until no iteration line turns up.
    """
    if any(ITERATION.search(line) for line in head):
        return MEGATRON
    said = [line.strip() for line in head if line.strip()]
    objects = [line.startswith(b"{") and line.endswith(b"}") for line in said]
    if objects and (objects[0] or 2 * sum(objects) > len(objects)):
        return JSONL
    return CSV if _is_table(said[:4]) else MEGATRON


def _is_table(said: list[bytes]) -> bool:
    """A header with a step, or a line and then rows of as many cells, numbers among them."""
    if not said:
        return False
    mark = max(DELIMITERS, key=lambda mark: said[0].count(mark.encode())).encode()
    header, *rows = ([cell.strip(b'" ') for cell in line.split(mark)] for line in said)
    if len(header) > 1 and any(cell.lower() in _STEPS for cell in header):
        return True
    return bool(rows) and all(
        len(row) == len(header) > 1 and any(_NUMBER.fullmatch(cell) for cell in row) for row in rows
    )


class Reader:
    """Reads the lines of a training log one by one.

    Attributes:
        series: What was read so far, by name.
        seen: Names of quantities in the file, for messages.
        records: Lines that held a step; ``damaged`` those that should have and could not be read.
        exact: Whether values were written with all their digits, by contract.
        averaged: Whether a loss is the mean over the steps since the line before.
    """

    averaged = False

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.series = {name: Series(name, name) for name in columns.series}
        self.seen: dict[str, None] = {}
        self.records = self.damaged = 0
        self.exact = False
        self._lines = self._first_damaged = 0

    def take(self, line: bytes) -> None:
        """Read the next line."""
        raise NotImplementedError

    def see(self, names: Iterable[str]) -> None:
        """Remember names, a bounded number of them."""
        if len(self.seen) < 1000:
            self.seen.update(dict.fromkeys(names))

    def damage(self) -> None:
        """Count the line read last as broken."""
        self.damaged += 1
        self._first_damaged = self._first_damaged or self._lines

    def notes(self) -> Iterator[str]:
        """What the reader of a verdict should know of the lines, once all are read."""
        if self.damaged:
            lines = "line" if self.damaged == 1 else "lines"
            yield (
                f"{self.damaged:,} {lines} could not be read, the first is line "
                f"{self._first_damaged:,}"
            )


_Path = tuple[str, ...]
"""Keys that lead from a JSON object into nested ones."""


class JsonReader(Reader):
    """Reads JSON lines."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self._places: dict[tuple[str, tuple[_Path, ...]], dict[str, _Path]] = {}

    def take(self, line: bytes) -> None:
        """Read one line."""
        self._lines += 1
        try:
            record = from_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            if not line.isspace():
                self.damage()
            return
        kind = record.get("kind", "step")
        if kind == "run":
            self.exact = True
        elif kind == "step" or (kind == EVALUATION and EVALUATION in self.series):
            self._record(kind, record)

    def _record(self, kind: str, record: dict[str, Any]) -> None:
        paths = tuple(_paths(record))
        places = self._places.get((kind, paths))
        if places is None:
            places = self._places[kind, paths] = self._located(kind, paths)
        step = step_number(_value(record, places.get(STEP, ())))
        if step is None:
            return
        self.records += 1
        for name, path in places.items():
            found = _value(record, path)
            value = found if type(found) is float else number(found)
            if name != STEP and value is not None:
                self.series[name].add(step, value)
                self.series[name].column = ".".join(path)

    def _located(self, kind: str, paths: tuple[_Path, ...]) -> dict[str, _Path]:
        """Return where the step and each series stand in records with these keys."""
        if kind == EVALUATION:
            wanted = {STEP: STEP, EVALUATION: LOSS}
        else:
            wanted = {name: name for name in (STEP, *self.series)}
            if EVALUATION not in self.columns.chosen:
                wanted.pop(EVALUATION, None)
        if len(self._places) > 1000:
            self._places.clear()
        named = {".".join(path): path for path in paths}
        self.see(name for name in named if name != "kind")
        found = {name: self.columns.find(key, named) for name, key in wanted.items()}
        return {name: named[key] for name, key in found.items() if key is not None}


def _paths(record: dict[str, Any]) -> Iterator[_Path]:
    for name, value in record.items():
        yield (name,)
        if isinstance(value, dict) and name != "cp_histogram":
            yield from ((name, *path) for path in _paths(value))


def _value(record: Any, path: _Path) -> Any:
    """Return the value at the end of a path; ``False``, which is not a number, for no path."""
    for key in path:
        record = record[key]
    return record if path else False


_COLOUR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_VALIDATION = re.compile(
    rb"validation(?:-\S+)? loss at iteration +([0-9]{1,15})(?: on validation set)? \| "
    rb"(?:lm )?loss value: +(\S+) \|"
)
_OTHER_LOSSES = re.compile(r"(?i)balanc|aux|z_loss|mtp|indexer")
_SKIPPED, _NAN = b"number of skipped iterations", b"number of nan iterations"


class _Fields(NamedTuple):
    """One iteration line: its step and, between its bars, its fields."""

    step: int
    text: bytes

    def get(self, name: bytes) -> bytes | None:
        """One field; far cheaper than all of them."""
        lead = b"| " + name + b": "
        start = self.text.find(lead)
        stop = self.text.find(b"|", start + len(lead))
        return self.text[start + len(lead) : stop] if start >= 0 and stop >= 0 else None

    def names(self) -> list[bytes]:
        """Names of all fields; the last one is left out where no bar closes it."""
        parts = self.text.split(b"|")[:-1]
        return [part.split(b": ", 1)[0].strip() for part in parts if b": " in part]


def _iterations(line: bytes) -> Iterator[_Fields]:
    """Every iteration line that stands in one line of the file."""
    heads = list(ITERATION.finditer(line))
    for place, head in enumerate(heads):
        stop = heads[place + 1].start() if place + 1 < len(heads) else len(line)
        yield _Fields(int(head[1]), line[head.end() - 1 : stop])


class MegatronReader(Reader):
    """Reads the lines of a Megatron log.

    Attributes:
        without_loss: Steps whose lines are whole and have no loss, while no line had one.
    """

    averaged = True

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self.without_loss: list[int] = []
        self._keys: dict[str, bytes] = {}
        self._skips: list[int] = []
        self._nans: list[int] = []

    def take(self, line: bytes) -> None:
        """Read one line; only an iteration or validation line matters."""
        if b"iteration" not in line:
            return
        clean = _COLOUR.sub(b"", line) if b"\x1b" in line else line
        for fields in _iterations(clean):
            self._iteration(fields)
        found = _VALIDATION.search(clean) if EVALUATION in self.series else None
        value = number(found[2]) if found else None
        if found and value is not None:
            _put(self.series[EVALUATION], int(found[1]), value, found[2])

    def _iteration(self, fields: _Fields) -> None:
        if self.records < 100:
            self.see(_text(name) for name in fields.names())
        self.records += 1
        skipped, nans = fields.get(_SKIPPED), fields.get(_NAN)
        if skipped is not None and skipped.strip() != b"0":
            self._skips.append(fields.step)
        if nans is not None and nans.strip() != b"0":
            self._nans.append(fields.step)
        # The last field is there, so nothing was cut off, and no skipped step explains a gap.
        whole = nans is not None and skipped is not None and skipped.strip() == b"0"
        for name, series in self.series.items():
            if name != EVALUATION:
                self._add(name, series, fields, whole)

    def _add(self, name: str, series: Series, fields: _Fields, whole: bool) -> None:
        key = self._keys.get(name) or self._key(name, series, fields)
        text = fields.get(key) if key is not None else None
        value = None if text is None else number(text)
        if text is not None and value is not None:
            if whole or name != LOSS or value != 0:
                _put(series, fields.step, value, text)
        elif name == LOSS and whole:
            if key is None:
                self.without_loss.append(fields.step)
            else:
                series.add(fields.step, math.nan)

    def _key(self, name: str, series: Series, fields: _Fields) -> bytes | None:
        """The field that holds a series, remembered once it is known."""
        names = {_text(field): field for field in fields.names()}
        found = self.columns.find(name, names)
        if found is None and name == LOSS and name not in self.columns.chosen:
            losses = (field for field in names if plain(field).endswith("loss"))
            found = next((field for field in losses if not _OTHER_LOSSES.search(field)), None)
        if found is None:
            return None
        series.column = found
        for step in self.without_loss if name == LOSS else ():
            series.add(step, math.nan)
        return self._keys.setdefault(name, names[found])

    def notes(self) -> Iterator[str]:
        """What the counters of skipped iterations told."""
        for kind, steps in (("skipped", self._skips), ("nan", self._nans)):
            if steps:
                yield f"{len(steps)} lines count {kind} iterations, the first at step {steps[0]}"
        if GRAD_NORM in self.series and GRAD_NORM not in self._keys:
            yield "no grad norm in its lines (a norm is logged only where gradients are clipped)"


def _put(series: Series, step: int, value: float, text: bytes) -> None:
    series.add(step, value)
    if not series.precision.rounded:
        series.precision = printed_precision(_text(text))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


_NOT_TRAINING = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|test)(?:[^a-z]|$)")
# Weights & Biases names a column "RUN - NAME", and the extremes of the points it merged
# "RUN - NAME__MIN" and "__MAX".
_ENDINGS = MappingProxyType({LOSS: ("loss",), GRAD_NORM: ("grad_norm", "gradnorm")})


class TableReader(Reader):
    """Reads the lines of a CSV file, of which the first that is not blank is the header.

    Raises:
        InputError: No header, no column for the step or any series, or two that could be it.
    """

    def __init__(self, columns: Columns, source: Origin) -> None:
        super().__init__(columns)
        self._source = source
        self._header: list[str] = []
        self._delimiter = ","
        self._step = self._width = 0
        self._adding: list[tuple[Series, int]] = []

    def take(self, line: bytes) -> None:
        """Read the header or one row."""
        text = line.decode("utf-8-sig", errors="replace").replace("\0", "\ufffd")
        if not text.strip():
            return
        self._lines += 1
        if not self._header:
            self._delimiter = max(DELIMITERS, key=text.count)
        try:
            row = next(csv.reader([text], delimiter=self._delimiter))
        except csv.Error as error:
            raise self._source.refused(
                f"not CSV: {error}", "repair it, or give its --format"
            ) from error
        if not self._header:
            self._begin(row)
            return
        step = step_number(row[self._step]) if len(row) >= self._width else None
        if step is None:
            if any(row):
                self.damage()
            return
        self.records += 1
        for series, place in self._adding:
            value = number(row[place]) if row[place] else None  # NaN is written out
            if value is not None:
                series.add(step, value)

    def _begin(self, header: list[str]) -> None:
        """Read the header: find the columns of the step and of the series."""
        if all(number(cell) is not None for cell in header):
            remedy = "name the columns in its first line"
            raise self._source.refused("a CSV file without a header", remedy)
        self._header = header
        self.see(header)
        step = self._column(STEP)
        if step is None:
            raise self._missing(STEP)
        places = {name: self._column(name) for name in self.series}
        spelled = [plain(name) for name in header]
        if LOSS in places and "value" in spelled and set(places.values()) == {None}:
            places[LOSS] = spelled.index("value")  # so TensorBoard exports one quantity
        found = {name: place for name, place in places.items() if place is not None}
        if not found:
            raise self._missing(self.columns.series[0])
        for name, place in found.items():
            self.series[name].column = header[place].strip()
        self._step = step
        self._adding = [(self.series[name], place) for name, place in found.items()]
        self._width = 1 + max(step, *found.values())

    def _column(self, wanted: str) -> int | None:
        """The place of a column: by the user's or usual names, or by how its name ends."""
        named = self.columns.find(wanted, self._header)
        if named is not None:
            return self._header.index(named)
        if wanted in self.columns.chosen:
            raise self._missing(wanted)
        endings = _ENDINGS.get(wanted, ())
        likely = [
            place
            for place, name in enumerate(map(plain, self._header))
            if name.endswith(endings) and not _NOT_TRAINING.search(name)
        ]
        if len(likely) > 1:
            names = [self._header[place].strip() for place in likely[:3]]
            remedy = f"choose with --columns '{wanted}={names[0]}'"
            raise self._source.refused(f"{wanted} could be {' or '.join(names)}", remedy)
        return likely[0] if likely else None

    def _missing(self, wanted: str) -> Exception:
        held = ", ".join(name.strip() for name in self._header[:8])
        more = ", ..." if len(self._header) > 8 else ""
        problem = f"no column for {wanted} among {held}{more}"
        return self._source.refused(problem, f"name it: --columns '{wanted}=COLUMN'")


def reader_of(format_name: str, columns: Columns, source: Origin) -> Reader:
    """Return the reader of a format."""
    if format_name == CSV:
        return TableReader(columns, source)
    return JsonReader(columns) if format_name == JSONL else MegatronReader(columns)


@dataclass(frozen=True)
class TrainingLog:
    """One run's log.

    Attributes:
        exact: Values were written with all their digits, by contract.
        averaged: A loss is the mean over the steps since the line before.
        names: Quantities that its first records hold.
    """

    path: str
    role: str
    format: str
    series: Mapping[str, Series]
    exact: bool
    averaged: bool
    names: tuple[str, ...]
    notes: tuple[str, ...]


def read_log(
    path: str,
    role: str,
    columns: Columns,
    *,
    format_name: str | None = None,
    stdin: BinaryIO | None = None,
) -> TrainingLog:
    """Read one log in one pass.

    Raises:
        InputError: it cannot be read, or holds no step with a wanted value.
    """
    with opened(role, path, what="training log", stdin=stdin) as log:
        lines = iter(lambda: log.readline(PIECE_BYTES), b"")
        head: list[bytes] = []
        for line in itertools.islice(lines, _HEAD_LINES):
            head.append(line)
            if log.bytes_read > _HEAD_BYTES:
                break
        if not head:
            raise log.refused("empty", "name a training log")
        if head[0].startswith(_UTF16):
            raise log.refused("UTF-16 text", "save it as UTF-8")
        head[0] = head[0].removeprefix(_UTF8_MARK)
        found = format_name or recognised(head)
        reader = reader_of(found, columns, log)
        for line in itertools.chain(head, lines):
            reader.take(line)
    series = {name: one for name, one in reader.series.items() if len(one)}
    if not series:
        raise _without_series(log, found, reader)
    for one in series.values():
        one.settle()
    notes = (*([log.damage] if log.damage else []), *reader.notes(), *_restarts(series.values()))
    names = tuple(reader.seen)
    return TrainingLog(path, role, found, series, reader.exact, reader.averaged, names, notes)


def _without_series(source: Origin, format_name: str, reader: Reader) -> Exception:
    held = ", ".join(list(reader.seen)[:12])
    if reader.records:
        wanted = reader.columns.series
        remedy = f"name the quantity: --columns '{wanted[0]}=NAME'"
        problem = f"its steps hold no {' or '.join(wanted)} but {held or 'nothing'}"
        return source.refused(problem, remedy)
    problem = "no training steps found"
    if format_name == MEGATRON:
        problem += ": no iteration line of Megatron-LM, no JSON lines, no CSV header"
        return source.refused(problem, "name a training log, or its --format")
    problem += f" among {held}" if held else ""
    return source.refused(problem, "name a training log, or its step with --columns step=NAME")


def _restarts(series: Iterable[Series]) -> Iterator[str]:
    most = max(series, key=lambda one: one.repeated)
    if most.repeated:
        changed = max(one.changed for one in series)
        others = f"{changed:,} with another value" if changed else "all with the same values"
        yield (
            f"{most.repeated:,} steps stand more than once from step {most.first_repeated:,} on "
            f"({others}): the later one counts"
        )
