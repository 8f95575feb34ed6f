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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from pydantic_core import from_json

from ringproof.harness.logs.lines import OpenLog, Origin, opened
from ringproof.harness.logs.training.series import (
    EVALUATION,
    GRAD_NORM,
    LOSS,
    STEP,
    Columns,
    Reading,
    Series,
    SeriesBuilder,
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


def _beginning(log: OpenLog) -> tuple[list[bytes], Iterator[bytes]]:
    """Return the first lines of a log, by which its format is recognised, and the others."""
    rest = iter(lambda: log.readline(PIECE_BYTES), b"")
    head: list[bytes] = []
    for line in itertools.islice(rest, _HEAD_LINES):
        head.append(line)
        if log.bytes_read > _HEAD_BYTES:
            break
    if not head:
        raise log.refused("empty", "name a training log")
    if head[0].startswith(_UTF16):
        raise log.refused("UTF-16 text", "save it as UTF-8")
    head[0] = head[0].removeprefix(_UTF8_MARK)
    return head, rest


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


_STEP_KIND, _EVALUATION_KIND = "step", "evaluation"


class JsonReader:
    """Reads JSON lines one by one into `reading`."""

    def __init__(self, columns: Columns) -> None:
        self.reading = Reading.of(columns)
        self._count = 0
        self._step = _Finder(columns.names(STEP))
        self._finders = {name: _Finder(columns.names(name)) for name in columns.series}
        if EVALUATION in self._finders and EVALUATION not in columns.chosen:
            del self._finders[EVALUATION]
        self._evaluation = {EVALUATION: _Finder(columns.names(LOSS))}

    def take(self, line: bytes) -> None:
        """Read one line."""
        self._count += 1
        reading = self.reading
        record = _object(line)
        if record is None:
            if not line.isspace():
                reading.damage(self._count)
            return
        kind = record.get("kind", _STEP_KIND)
        if kind == _STEP_KIND:
            _take(record, reading, self._step, self._finders)
        elif kind == "run":
            reading.exact = True
        elif kind == _EVALUATION_KIND and EVALUATION in reading.builders:
            _take(record, reading, self._step, self._evaluation)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        record = from_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _take(
    record: dict[str, Any], reading: Reading, step: _Finder, finders: dict[str, _Finder]
) -> None:
    if reading.records < 100:
        reading.see(_names(record))
    place = step_number(step.value(record))
    if place is None:
        return
    reading.records += 1
    for name, finder in finders.items():
        found = finder.value(record)
        value = found if type(found) is float else number(found)
        if value is not None:
            reading.builders[name].add(place, value)
            reading.builders[name].column = finder.column


class _Finder:
    """Where one quantity stands in the records: found once, then looked up."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._path: tuple[str, ...] = ()
        self.column = names[0]

    def value(self, record: dict[str, Any]) -> Any:
        """The value; ``False``, which is no number, where the record has none."""
        if not self._path:
            self._path = self._located(record)
            self.column = ".".join(self._path) or self.column
        if len(self._path) == 1:
            return record.get(self._path[0], False)
        return _followed(record, self._path) if self._path else False

    def _located(self, record: dict[str, Any]) -> tuple[str, ...]:
        spelled = {plain(name): name for name in reversed(record)}
        for name in self._names:
            key = name if name in record else spelled.get(plain(name))
            path = (key,) if key is not None else tuple(name.split("."))
            if _followed(record, path) is not False:
                return path
        return ()


def _followed(record: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = record
    for key in path:
        if not isinstance(value, dict):
            return False
        value = value.get(key, False)
    return value


def _names(record: dict[str, Any]) -> list[str]:
    inner = [
        f"{name}.{below}"
        for name, value in record.items()
        if isinstance(value, dict) and name != "cp_histogram"
        for below in value
    ]
    return [name for name in record if name != "kind"] + inner


_COLOUR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_VALIDATION = re.compile(
    rb"validation(?:-\S+)? loss at iteration +([0-9]{1,15})(?: on validation set)? \| "
    rb"(?:lm )?loss value: +(\S+) \|"
)
_OTHER_LOSSES = re.compile(r"balanc|aux|z_loss|mtp|indexer")
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


class MegatronReader:
    """Reads the lines of a Megatron log one by one into `reading`.

    Attributes:
        without_loss: Steps whose lines are whole and have no loss, while no line had one.
    """

    def __init__(self, columns: Columns) -> None:
        self.reading = self._reading = Reading.of(columns)
        self.reading.averaged = True
        self.without_loss: list[int] = []
        self._columns = columns
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
        if EVALUATION in self._reading.builders and (found := _VALIDATION.search(clean)):
            self._evaluation(int(found[1]), found[2])

    def _iteration(self, fields: _Fields) -> None:
        if self._reading.records < 100:
            self._reading.see(_text(name) for name in fields.names())
        self._reading.records += 1
        skipped, nans = fields.get(_SKIPPED), fields.get(_NAN)
        if skipped is not None and skipped.strip() != b"0":
            self._skips.append(fields.step)
        if nans is not None and nans.strip() != b"0":
            self._nans.append(fields.step)
        # The last field is there, so nothing was cut off, and no skipped step explains a gap.
        whole = nans is not None and skipped is not None and skipped.strip() == b"0"
        for name, builder in self._reading.builders.items():
            if name != EVALUATION:
                self._add(name, builder, fields, whole)

    def _add(self, name: str, builder: SeriesBuilder, fields: _Fields, whole: bool) -> None:
        key = self._keys.get(name) or self._key(name, builder, fields)
        text = fields.get(key) if key is not None else None
        value = None if text is None else number(text)
        if text is not None and value is not None:
            if not builder.precision.rounded:
                builder.precision = printed_precision(_text(text))
            if whole or name != LOSS or value != 0:
                builder.add(fields.step, value)
        elif name == LOSS and whole:
            if key is None:
                self.without_loss.append(fields.step)
            else:
                builder.add(fields.step, math.nan)

    def _key(self, name: str, builder: SeriesBuilder, fields: _Fields) -> bytes | None:
        """The field that holds a series, remembered once it is known."""
        spelled = {plain(_text(field)): field for field in fields.names()}
        names = [plain(item) for item in self._columns.names(name)]
        if name == LOSS and name not in self._columns.chosen:
            names.sort(key=lambda item: item != "lm_loss")
            names += [s for s in spelled if s.endswith("loss") and not _OTHER_LOSSES.search(s)]
        key = next((spelled[item] for item in names if item in spelled), None)
        if key is None:
            return None
        self._keys[name] = key
        builder.column = _text(key)
        if name == LOSS:
            for step in self.without_loss:
                builder.add(step, math.nan)
        return key

    def _evaluation(self, step: int, text: bytes) -> None:
        value = number(text)
        if value is not None:
            builder = self._reading.builders[EVALUATION]
            builder.add(step, value)
            builder.precision = printed_precision(_text(text))

    def notes(self) -> Iterator[str]:
        """What the counters of skipped iterations told."""
        for kind, steps in (("skipped", self._skips), ("nan", self._nans)):
            if steps:
                yield f"{len(steps)} lines count {kind} iterations, the first at step {steps[0]}"
        if GRAD_NORM in self._reading.builders and GRAD_NORM not in self._keys:
            yield "no grad norm in its lines (a norm is logged only where gradients are clipped)"


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


_NOT_TRAINING = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|test)(?:[^a-z]|$)")
# Weights & Biases names a column "RUN - NAME", and the extremes of the points it merged
# "RUN - NAME__MIN" and "__MAX".
_ENDINGS = MappingProxyType({LOSS: ("loss",), GRAD_NORM: ("grad_norm", "gradnorm")})


class TableReader:
    """Reads the rows of a CSV file one by one into `reading`.

    Raises:
        InputError: No header, no column for the step or any series, or two that could be it.
    """

    def __init__(self, source: Origin, columns: Columns, header: list[str]) -> None:
        if all(number(cell) is not None for cell in header):
            remedy = "name the columns in its first line"
            raise source.refused("a CSV file without a header", remedy)
        self.reading = Reading.of(columns)
        self.reading.see(header)
        step = _column(source, header, columns, STEP)
        if step is None:
            raise _missing(source, header, STEP)
        places = {name: _column(source, header, columns, name) for name in columns.series}
        places = _value_alone(header, places)
        found = {name: place for name, place in places.items() if place is not None}
        if not found:
            raise _missing(source, header, columns.series[0])
        for name, place in found.items():
            self.reading.builders[name].column = header[place].strip()
        self._count = 1  # the header
        self._step = step
        self._adding = [(self.reading.builders[name].add, place) for name, place in found.items()]
        self._width = 1 + max(step, *found.values())

    def take(self, row: list[str]) -> None:
        """Read one row."""
        self._count += 1
        at = step_number(row[self._step]) if len(row) >= self._width else None
        if at is None:
            if any(row):
                self.reading.damage(self._count)
            return
        self.reading.records += 1
        for add, place in self._adding:
            cell = row[place]
            value = number(cell) if cell else None  # an empty cell is no value, NaN is written
            if value is not None:
                add(at, value)


def _read_table(log: OpenLog, raw: Iterable[bytes], columns: Columns) -> TableReader:
    lines = (line.decode("utf-8", errors="replace").replace("\0", "\ufffd") for line in raw)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise log.refused("empty", "name a training log")
    delimiter = max(DELIMITERS, key=first.count)
    try:
        reader = TableReader(log, columns, next(csv.reader([first], delimiter=delimiter)))
        for row in csv.reader(lines, delimiter=delimiter):
            reader.take(row)
    except csv.Error as error:
        raise log.refused(f"not CSV: {error}", "repair it, or give its --format") from error
    return reader


def _column(source: Origin, header: Sequence[str], columns: Columns, wanted: str) -> int | None:
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


def _missing(source: Origin, header: Sequence[str], wanted: str) -> Exception:
    held = ", ".join(name.strip() for name in header[:8])
    more = ", ..." if len(header) > 8 else ""
    return source.refused(
        f"no column for {wanted} among {held}{more}", f"name it: --columns '{wanted}=COLUMN'"
    )


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
        head, rest = _beginning(log)
        found = format_name or recognised(head)
        lines = itertools.chain(head, rest)
        reader: JsonReader | MegatronReader | TableReader
        if found == CSV:
            reader = _read_table(log, lines, columns)
        else:
            reader = JsonReader(columns) if found == JSONL else MegatronReader(columns)
            for line in lines:
                reader.take(line)
    reading = reader.reading
    if found == MEGATRON and not reading.records:
        raise log.refused(
            "no training steps found: no iteration line of Megatron-LM, no JSON lines, no CSV "
            "header",
            "name a training log, or its --format",
        )
    series = {name: builder.finish() for name, builder in reading.builders.items() if len(builder)}
    if not series:
        raise _without_series(log, reading, columns)
    return TrainingLog(
        path,
        role,
        found,
        series,
        reading.exact,
        reading.averaged,
        tuple(reading.seen),
        tuple(_notes(log, reader, series)),
    )


def _without_series(source: Origin, reading: Reading, columns: Columns) -> Exception:
    wanted = " or ".join(columns.series)
    if not reading.records:
        held = ", ".join(list(reading.seen)[:12])
        problem = f"no training steps found among {held}" if held else "no training steps found"
        return source.refused(problem, "name a training log, or its step with --columns step=NAME")
    held = ", ".join(list(reading.seen)[:12]) or "nothing"
    remedy = f"name the quantity: --columns '{columns.series[0]}=NAME'"
    return source.refused(f"its steps hold no {wanted} but {held}", remedy)


def _notes(
    log: OpenLog, reader: JsonReader | MegatronReader | TableReader, series: Mapping[str, Series]
) -> Iterator[str]:
    reading = reader.reading
    if log.damage:
        yield log.damage
    if reading.damaged:
        lines = "line" if reading.damaged == 1 else "lines"
        yield (
            f"{reading.damaged:,} {lines} could not be read, the first is line "
            f"{reading.first_damaged:,}"
        )
    if isinstance(reader, MegatronReader):
        yield from reader.notes()
    repeated = max(series.values(), key=lambda one: one.repeated)
    if repeated.repeated:
        changed = max(one.changed for one in series.values())
        others = f"{changed:,} with another value" if changed else "all with the same values"
        yield (
            f"{repeated.repeated:,} steps stand more than once from step "
            f"{repeated.first_repeated:,} on ({others}): the later one counts"
        )
