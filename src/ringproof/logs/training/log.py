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
from typing import Any, BinaryIO

from pydantic_core import from_json

from ringproof.logs.lines import Origin, opened
from ringproof.logs.training.curves import CurveFinding, judge_curves
from ringproof.logs.training.series import (
    EVALUATION,
    GRAD_NORM,
    JUDGED,
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
_ITERATION_LINE = re.compile(ITERATION.pattern + rb"[^\r\n]*")
_JSON_LINE = re.compile(rb'(?m)^\{"[^\r\n]*loss[^\r\n]*')


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
        self._keys: dict[str, Any] = {}  # what the step and each series found are called
        self._places: list[tuple[Series, Any]] = []  # the same, of the series
        self._shapes: set[tuple[Any, ...]] = set()
        self._lines = self._first_damaged = 0

    def take(self, line: bytes) -> None:
        """Read the next line."""
        raise NotImplementedError

    def notes(self) -> Iterator[str]:
        """What the reader of a verdict should know of the lines, once all are read."""
        if self.damaged:
            lines = "line" if self.damaged == 1 else "lines"
            yield (
                f"{self.damaged:,} {lines} could not be read, the first is line "
                f"{self._first_damaged:,}"
            )

    def _damage(self) -> None:
        """Count the line read last as broken."""
        self.damaged += 1
        self._first_damaged = self._first_damaged or self._lines

    def _record(self, values: dict[Any, Any]) -> bool:
        """Take the quantities of a step, by their names in the file; return whether it has one."""
        if len(self._keys) <= len(self.series):  # some quantity has not been found
            shape = tuple(values)
            if shape not in self._shapes:
                self._shapes.add(shape)
                self._locate({_text(key): key for key in values})
        step = step_number(values.get(self._keys.get(STEP), False))
        if step is None:
            return False
        self.records += 1
        for series, key in self._places:
            raw = values.get(key, False)
            value = raw if type(raw) is float else number(raw)
            if value is not None:
                self._add(series, step, value, raw)
        return True

    def _add(self, series: Series, step: int, value: float, raw: Any) -> None:
        series.add(step, value)

    def _locate(self, names: dict[str, Any]) -> None:
        """Find the step and the series that are still missing among the names of a record."""
        if len(self.seen) < 1000:
            self.seen.update(dict.fromkeys(names))
        if len(self._shapes) > 1000:
            self._shapes.clear()
        for wanted in (STEP, *self.series):
            found = None if wanted in self._keys else self._find(wanted, list(names))
            if found is not None:
                self._found(wanted, names[found], found)

    def _found(self, wanted: str, key: Any, column: str) -> None:
        self._keys[wanted] = key
        if wanted != STEP:
            self._places.append((self.series[wanted], key))
            self.series[wanted].column = column

    def _find(self, wanted: str, names: list[str]) -> str | None:
        """The name that holds a quantity; losses on held-out data stand in lines of their own."""
        if wanted == EVALUATION and wanted not in self.columns.chosen:
            return None
        return self.columns.find(wanted, names)


class JsonReader(Reader):
    """Reads JSON lines."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self._nested = True  # whether something wanted may stand in an inner object

    def take(self, line: bytes) -> None:
        """Read one line."""
        self._lines += 1
        try:
            record = from_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            if not line.isspace():
                self._damage()
            return
        kind = record.pop("kind", "step")
        if kind == "run":
            self.exact = True
        elif kind == "step":
            self._record(_flat(record) if self._nested else record)
        elif kind == EVALUATION and EVALUATION in self.series:
            place, loss = (self.columns.find(wanted, record) or "" for wanted in (STEP, LOSS))
            step, value = step_number(record.get(place, False)), number(record.get(loss, False))
            if step is not None and value is not None:
                self.records += 1
                self.series[EVALUATION].add(step, value)
                self.series[EVALUATION].column = loss

    def _locate(self, names: dict[str, Any]) -> None:
        super()._locate(names)
        missing = len(self._keys) <= len(self.series)
        self._nested = missing or any("." in key for key in self._keys.values())


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the values of inner objects under names such as ``losses.lm``."""
    inner = [name for name in record if isinstance(record[name], dict) and name != "cp_histogram"]
    for name in inner:
        record |= {f"{name}.{below}": value for below, value in _flat(record[name]).items()}
    return record


_COLOUR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_VALIDATION = re.compile(
    rb"validation(?:-\S+)? loss at iteration +([0-9]{1,15})(?: on validation set)? \| "
    rb"(?:lm )?loss value: +(\S+) \|"
)
_OTHER_LOSSES = re.compile(r"(?i)balanc|aux|z_loss|mtp|indexer")
_SKIPPED, _NAN = b" number of skipped iterations", b" number of nan iterations"
_STEP = b"iteration"


class MegatronReader(Reader):
    """Reads the lines of a Megatron log.

    Attributes:
        without_loss: Steps whose lines are whole and have no loss, while no line had one.
    """

    averaged = True

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self.without_loss: list[int] = []
        self._counted: dict[bytes, list[int]] = {_SKIPPED: [], _NAN: []}
        self._keys[STEP] = _STEP
        self._whole = True

    def take(self, line: bytes) -> None:
        """Read one line; only an iteration or validation line matters."""
        if b"iteration" not in line:
            return
        clean = _COLOUR.sub(b"", line) if b"\x1b" in line else line
        heads = list(ITERATION.finditer(clean))
        stops = [*(head.start() for head in heads[1:]), len(clean)]
        for head, stop in zip(heads, stops, strict=False):
            parts = clean[head.end() : stop].split(b"|")[:-1]  # a bar closes every field
            pairs = [part.split(b": ", 1) for part in parts if b": " in part]
            self._iteration({_STEP: head[1], **dict(pairs)})
        found = _VALIDATION.search(clean) if EVALUATION in self.series else None
        value = number(found[2]) if found else None
        if found and value is not None:
            self._add(self.series[EVALUATION], int(found[1]), value, found[2])

    def _iteration(self, fields: dict[bytes, bytes]) -> None:
        for name, steps in self._counted.items():
            if fields.get(name, b"0").strip() != b"0":
                steps.append(int(fields[_STEP]))
        # The last field is there, so nothing was cut off, and no skipped step explains a gap.
        self._whole = _NAN in fields and fields.get(_SKIPPED, b"").strip() == b"0"
        self._record(fields)
        if self._whole and LOSS in self.series:
            if self._keys.get(LOSS) not in fields:
                self.without_loss.append(int(fields[_STEP]))
            if LOSS in self._keys and self.without_loss:
                for step in self.without_loss:
                    self.series[LOSS].add(step, math.nan)
                self.without_loss = []

    def _add(self, series: Series, step: int, value: float, raw: bytes) -> None:
        if value != 0 or series.name != LOSS or self._whole:  # main prints 0 for skipped steps
            series.add(step, value)
        if not series.precision.rounded:
            series.precision = printed_precision(_text(raw))

    def _find(self, wanted: str, names: list[str]) -> str | None:
        found = super()._find(wanted, names)
        if found is None and wanted == LOSS and wanted not in self.columns.chosen:
            losses = (name for name in names if plain(name).endswith("loss"))
            found = next((name for name in losses if not _OTHER_LOSSES.search(name)), None)
        return found

    def notes(self) -> Iterator[str]:
        """What the counters of skipped iterations told."""
        for kind, steps in zip(("skipped", "nan"), self._counted.values(), strict=True):
            if steps:
                yield f"{len(steps)} lines count {kind} iterations, the first at step {steps[0]}"
        if GRAD_NORM in self.series and GRAD_NORM not in self._keys:
            yield "no grad norm in its lines (a norm is logged only where gradients are clipped)"


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode("utf-8", errors="replace").strip()


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
        self._width = 0

    def take(self, line: bytes) -> None:
        """Read the header or one row."""
        text = line.decode("utf-8", errors="replace").replace("\0", "\ufffd").lstrip("\ufeff")
        if text.isspace() or not text:
            return
        self._lines += 1
        if not self._header:
            self._delimiter = max(DELIMITERS, key=text.count)
        try:
            row = next(csv.reader([text], delimiter=self._delimiter))
        except csv.Error as error:
            remedy = "repair it, or give its --format"
            raise self._source.refused(f"not CSV: {error}", remedy) from error
        if not self._header:
            self._begin([name.strip() for name in row])
            return
        whole = len(row) >= self._width
        if not (whole and self._record(dict(zip(self._header, row, strict=False)))) and any(row):
            self._damage()

    def _begin(self, header: list[str]) -> None:
        if all(number(cell) is not None for cell in header):
            remedy = "name the columns in its first line"
            raise self._source.refused("a CSV file without a header", remedy)
        self._header = header
        self._locate({name: name for name in header})
        values = [name for name in header if plain(name) == "value"]
        if values and LOSS in self.series and list(self._keys) == [STEP]:
            self._found(LOSS, values[0], values[0])  # of TensorBoard's export
        for wanted in (STEP, self.columns.series[0]):
            if wanted not in self._keys and (wanted == STEP or len(self._keys) == 1):
                raise self._missing(wanted)
        self._width = 1 + max(map(header.index, self._keys.values()))

    def _find(self, wanted: str, names: list[str]) -> str | None:
        """The column by the user's or usual names, or by how its name ends."""
        found = self.columns.find(wanted, names)
        if found is None and wanted in self.columns.chosen:
            raise self._missing(wanted)
        endings = _ENDINGS.get(wanted, ())
        likely = [
            name
            for name in names
            if plain(name).endswith(endings) and not _NOT_TRAINING.search(plain(name))
        ]
        if found is not None or not likely:
            return found
        if len(likely) > 1:
            remedy = f"choose with --columns '{wanted}={likely[0]}'"
            raise self._source.refused(f"{wanted} could be {' or '.join(likely[:3])}", remedy)
        return likely[0]

    def _missing(self, wanted: str) -> Exception:
        more = ", ..." if len(self._header) > 8 else ""
        problem = f"no column for {wanted} among {', '.join(self._header[:8])}{more}"
        return self._source.refused(problem, f"name it: --columns '{wanted}=COLUMN'")


class CurveReader:
    """Collects loss and gradient norm from a text log, in which any other lines may stand."""

    def __init__(self) -> None:
        self._megatron, self._json = MegatronReader(Columns()), JsonReader(Columns())

    def take(self, data: bytes, end: int) -> None:
        """Take the lines of ``data[:end]`` that show a training step."""
        for line in _ITERATION_LINE.finditer(data, 0, end):
            self._megatron.take(line[0])
        # The expression alone would try every line; most logs have no such line at all.
        if data.startswith(b'{"') or data.find(b'\n{"', 0, end) >= 0:
            for line in _JSON_LINE.finditer(data, 0, end):
                self._json.take(line[0])

    def findings(self) -> tuple[CurveFinding, ...]:
        """Return what is conspicuous in the curves."""
        found = {name: one.by_step() for name, one in self._json.series.items()}
        for name, one in self._megatron.series.items():
            found[name] |= one.by_step()
        for step in self._megatron.without_loss:  # no line had one
            found[LOSS][step] = math.nan
        return judge_curves(found[LOSS], found[GRAD_NORM])


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

    def curve_findings(self) -> tuple[CurveFinding, ...]:
        """Return what is conspicuous in its curves."""
        curves = [self.series[name].by_step() if name in self.series else {} for name in JUDGED]
        return judge_curves(*curves)


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
