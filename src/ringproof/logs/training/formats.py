"""Three formats of training logs: how each line becomes the quantities of a step.

`shaped` reads the lines of any other framework.

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
  of 0, which is not read as one.
* Colours, prefixes of launchers and the lines of several ranks glued together do not matter.

CSV has a header, as written by a script or exported from Weights & Biases or TensorBoard.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from pydantic_core import from_json

from ringproof.logs.training.quantities import (
    EVALUATION,
    GRAD_NORM,
    LOSS,
    STEP,
    USUAL_NAMES,
    Columns,
    number,
    plain,
    step_number,
)
from ringproof.logs.training.series import Series, printed_precision

JSONL, MEGATRON, CSV, TEXT = "jsonl", "megatron", "csv", "text"
FORMATS = (JSONL, MEGATRON, CSV, TEXT)
DELIMITERS = (",", ";", "\t")
# What begins a line of Megatron-LM's training_log and of Megatron-Bridge's; the same in all
# releases read.
ITERATION = re.compile(rb"\biteration +([0-9]{1,15})/ *[0-9]{1,15} +\|")
COLOUR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_NUMBER = re.compile(rb"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_OBJECT = re.compile(rb"\{(?!\s*')")  # a quote of this kind is one of Python
_MOST_SHAPES = 1000
_VALIDATION_LOSS = USUAL_NAMES[EVALUATION][0]


def recognised(head: list[bytes]) -> str:
    """Return the format of a log that begins with these lines.

    An iteration line anywhere makes it Megatron's, even inside JSON, as container engines wrap it.
    Else it is JSON lines if the first line that says anything is an object, or most lines are; or
    CSV if columns of numbers follow. Anything else may be a long preamble, so it is
    Megatron's until no iteration line turns up.
    """
    if any(ITERATION.search(line) for line in head):
        return MEGATRON
    said = [line.strip() for line in head if line.strip()]
    objects = [_OBJECT.match(line) is not None and line.endswith(b"}") for line in said]
    if objects and (objects[0] or 2 * sum(objects) > len(objects)):
        return JSONL
    return CSV if _is_table(said[:4]) else MEGATRON


def _is_table(said: list[bytes]) -> bool:
    """Whether a header with a step comes first, or a line and then rows with as many cells."""
    if not said:
        return False
    mark = max(DELIMITERS, key=lambda mark: said[0].count(mark.encode())).encode()
    header, *rows = ([cell.strip(b'" ') for cell in line.split(mark)] for line in said)
    steps = set(USUAL_NAMES[STEP])
    if len(header) > 1 and any(cell.lower().decode("latin-1") in steps for cell in header):
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
        self._keys: dict[str, str] = {}  # what the step and each series found are called
        # Records of equal names are looked at once.
        self._locate = lru_cache(_MOST_SHAPES)(self._locate_among)
        self._lines = self._first_damaged = 0

    def read(self, block: bytes) -> None:
        """Read the next lines."""
        for line in block.splitlines():
            self.take(line)

    def take(self, line: bytes) -> None:
        """Read the next line."""
        raise NotImplementedError

    def notes(self) -> Iterator[str]:
        """Yield what the reader of a verdict should know of the lines, once all are read."""
        if self.damaged:
            lines = "line" if self.damaged == 1 else "lines"
            first = f"the first is line {self._first_damaged:,}"
            yield f"{self.damaged:,} {lines} could not be read, {first}"

    def _damage(self) -> None:
        """Count the line read last as broken."""
        self.damaged += 1
        self._first_damaged = self._first_damaged or self._lines

    def _record(self, values: dict[str, Any]) -> bool:
        """Take the quantities of a step, by their names in the file; return whether it has one."""
        if len(self._keys) <= len(self.series):  # some quantity has not been found
            self._locate(tuple(values))
        step = step_number(values.get(self._keys.get(STEP, ""), False))
        if step is None:
            return False
        self.records += 1
        for name, series in self.series.items():
            raw = values.get(self._keys.get(name, ""), False)
            value = raw if type(raw) is float else number(raw)
            if value is not None:
                series.add(step, value)
                # Megatron prints a fixed number of digits; JSON and CSV hold any number.
                if self.averaged and not series.precision.rounded:
                    series.precision = printed_precision(raw)
        return True

    def _locate_among(self, names: tuple[str, ...]) -> None:
        """Find the step and the series that are still missing among the names of a record."""
        if len(self.seen) < _MOST_SHAPES:
            self.seen.update(dict.fromkeys(names))
        for wanted in (STEP, *self.series):
            found = None if wanted in self._keys else self._find(wanted, names)
            if found is not None:
                self._keys[wanted] = found
                if wanted != STEP:
                    self.series[wanted].column = found

    def _find(self, wanted: str, names: tuple[str, ...]) -> str | None:
        return self.columns.find(wanted, names)


class JsonReader(Reader):
    """Reads JSON lines."""

    def take(self, line: bytes) -> None:
        """Read one line."""
        self._lines += 1
        try:
            record = from_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            if line.strip():
                self._damage()
            return
        kind = record.pop("kind", "step")
        if kind == EVALUATION:  # whose loss is not that of the training
            record[_VALIDATION_LOSS] = record.pop(self.columns.find(LOSS, record) or "", False)
        self.exact |= kind == "run"
        if kind in ("step", EVALUATION):
            self._record(_flat(record))

    def _find(self, wanted: str, names: tuple[str, ...]) -> str | None:
        """Return a name; those of inner objects count by their last part, as in verl's file."""
        found = super()._find(wanted, names)
        if found is None and wanted not in self.columns.chosen:
            inner = {name.partition(".")[2]: name for name in names if "." in name}
            short = self.columns.find(wanted, inner)
            short = short or next(iter(self.columns.similar(wanted, inner)), None)
            found = inner[short] if short else None
        return found


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the values of inner objects under names such as ``losses.lm``."""
    inner = [name for name in record if isinstance(record[name], dict) and name != "cp_histogram"]
    for name in inner:
        record |= {f"{name}.{below}": value for below, value in _flat(record[name]).items()}
    return record


_VALIDATION = re.compile(
    r"validation(?:-\S+)? loss at iteration +([0-9]{1,15})(?: on validation set)? \| "
    r"(?:lm )?loss value: +(\S+) \|"
)
# A line without skipped iterations, and with a loss other than 0, which main prints for no loss.
_USUAL_LINE = re.compile(
    rb"iteration +([0-9]{1,15})/ *[0-9]{1,15} +\|[^\r\n\x1b]*?"
    rb" lm loss: ([1-9][0-9.]*E[+-][0-9]+) (?=\|)[^\r\n\x1b]*?"
    rb"\| grad norm: ([0-9]+\.[0-9]+) \|[^\r\n\x1b]*?"
    rb" skipped iterations: +0 \| number of nan iterations: +0 \|"
)
_SKIPPED, _NAN = " number of skipped iterations", " number of nan iterations"


class MegatronReader(Reader):
    """Reads the lines of a Megatron log.

    Attributes:
        without_loss: Steps whose lines are whole and have no loss, while no line had one.
    """

    averaged = True

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        self.without_loss: list[int] = []
        self._counted: dict[str, list[int]] = {_SKIPPED: [], _NAN: []}

    def take(self, line: bytes) -> None:
        """Read one line; only an iteration or validation line matters."""
        if b"iteration" not in line:
            return
        clean = COLOUR.sub(b"", line) if b"\x1b" in line else line
        heads = list(ITERATION.finditer(clean))
        stops = [*(head.start() for head in heads[1:]), len(clean)]
        for head, stop in zip(heads, stops, strict=False):
            text = clean[head.end() : stop].decode("utf-8", errors="replace")
            parts = text.split("|")[:-1]  # a bar closes every field
            pairs = [part.split(": ", 1) for part in parts if ": " in part]
            self._iteration(int(head[1]), dict(pairs))
        if EVALUATION in self.series:
            found = _VALIDATION.search(clean.decode("utf-8", errors="replace"))
            if found:
                self._record({"iteration": found[1], _VALIDATION_LOSS: found[2]})

    def read(self, block: bytes) -> None:
        """Read the iteration and validation lines among any others."""
        place = block.find(b"iteration ")
        done = 0
        while place >= 0:
            # A long training has a million such lines; this saves nine tenths of the time.
            usual = _USUAL_LINE.match(block, place) if self._is_usual else None
            if usual:
                self.records += 1
                for name, value in ((LOSS, usual[2]), (GRAD_NORM, usual[3])):
                    self.series[name].add(int(usual[1]), float(value))
                done = usual.end()
            else:
                start = max(done, block.rfind(b"\n", done, place) + 1)
                end = block.find(b"\n", place)
                done = end if end >= 0 else len(block)
                self.take(block[start:done])
            place = block.find(b"iteration ", done)

    @property
    def _is_usual(self) -> bool:
        """Whether loss and gradient norm are all that is looked for, under their usual names.

        Steps without a loss wait for the first line that is whole and has one.
        """
        return not self.without_loss and self._keys == {
            STEP: "iteration",
            LOSS: "lm loss",
            GRAD_NORM: "grad norm",
        }

    def _iteration(self, step: int, fields: dict[str, str]) -> None:
        for name, steps in self._counted.items():
            if fields.get(name, "0").strip() != "0":
                steps.append(step)
        # The last field is there, so nothing was cut off, and no skipped step explains a gap.
        whole = _NAN in fields and fields.get(_SKIPPED, "").strip() == "0"
        values = {name.strip(): value for name, value in fields.items()}
        if not whole:  # main prints 0 for the loss of skipped steps
            values = {name: value for name, value in values.items() if not _is_no_loss(name, value)}
        self._record({"iteration": str(step), **values})
        if whole and LOSS in self.series:
            if self._keys.get(LOSS) not in values:
                self.without_loss.append(step)
            if LOSS in self._keys:
                for missing in self.without_loss:
                    self.series[LOSS].add(missing, math.nan)
                self.without_loss = []

    def _find(self, wanted: str, names: tuple[str, ...]) -> str | None:
        # A line may hold several losses, of which the first is the model's own.
        similar = self.columns.similar(wanted, names) if wanted == LOSS else ()
        return super()._find(wanted, names) or next(iter(similar), None)

    def notes(self) -> Iterator[str]:
        """Yield what the counters of skipped iterations told."""
        for kind, steps in zip(("skipped", "nan"), self._counted.values(), strict=True):
            if steps:
                yield f"{len(steps)} lines count {kind} iterations, the first at step {steps[0]}"
        if GRAD_NORM in self.series and GRAD_NORM not in self._keys:
            yield "no grad norm in its lines (a norm is logged only where gradients are clipped)"


def _is_no_loss(name: str, value: str) -> bool:
    return name.endswith("loss") and number(value) == 0


class TableReader(Reader):
    """Reads the lines of a CSV file, of which the first that is not blank is the header.

    Args:
        refused: Makes the error for a file without a column that is needed, or with several.

    Raises:
        InputError: No header, no column for the step or any series, or two that could be it.
    """

    def __init__(self, columns: Columns, refused: Callable[[str], Exception]) -> None:
        super().__init__(columns)
        self._refused = refused
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
            raise self._refused(f"is not CSV ({error}); repair it, or give --log-format") from error
        if not self._header:
            self._begin([name.strip() for name in row])
            return
        whole = len(row) >= self._width  # of a row that is cut, the last cell may be half a number
        if not (whole and self._record(dict(zip(self._header, row, strict=False)))) and any(row):
            self._damage()

    def _begin(self, header: list[str]) -> None:
        if all(number(cell) is not None for cell in header):
            raise self._refused("is CSV without a header; name the columns in its first line")
        self._header = header
        self._locate(tuple(header))
        for wanted in (STEP, self.columns.series[0]):
            if wanted not in self._keys and (wanted == STEP or len(self._keys) == 1):
                raise self._missing(wanted)
        self._width = 1 + max(map(header.index, self._keys.values()))

    def _find(self, wanted: str, names: tuple[str, ...]) -> str | None:
        """Return the column by the user's or usual names, or by how its name ends."""
        found = super()._find(wanted, names)
        if found is None and wanted in self.columns.chosen:
            raise self._missing(wanted)
        similar = self.columns.similar(wanted, names)
        if found is None and len(similar) > 1:
            among = " or ".join(similar[:3])
            raise self._refused(
                f"has several columns that could be {wanted} ({among}); choose with "
                f"--columns '{wanted}={similar[0]}'"
            )
        # TensorBoard exports one quantity a file, whose column is always called "Value".
        value = [name for name in names if plain(name) == "value" and wanted == LOSS]
        return found or next(iter((*similar, *value)), None)

    def _missing(self, wanted: str) -> Exception:
        among = ", ".join(self._header[:8]) + (", ..." if len(self._header) > 8 else "")
        return self._refused(
            f"has no column for {wanted} among {among}; name it: --columns '{wanted}=COLUMN'"
        )
