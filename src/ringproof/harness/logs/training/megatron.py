"""The iteration lines of Megatron-LM and Megatron-Bridge.

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
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from ringproof.harness.logs.training.columns import (
    EVALUATION,
    GRAD_NORM,
    LOSS,
    Columns,
    plain,
)
from ringproof.harness.logs.training.reading import Reading, number
from ringproof.harness.logs.training.series import SeriesBuilder, printed_precision
from ringproof.harness.logs.training.source import ITERATION, Source

_COLOUR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_VALIDATION = re.compile(
    rb"validation(?:-\S+)? loss at iteration +([0-9]{1,15})(?: on validation set)? \| "
    rb"(?:lm )?loss value: +(\S+) \|"
)
_OTHER_LOSSES = re.compile(r"balanc|aux|z_loss|mtp|indexer")
_SKIPPED, _NAN = b"number of skipped iterations", b"number of nan iterations"


def read_megatron(source: Source, columns: Columns) -> Reading:
    """All iterations of a Megatron log, whatever else stands in it.

    Raises:
        InputError: not one iteration line.
    """
    reading = Reading.of(columns)
    reading.averaged = True
    reader = _Reader(reading, columns)
    for line in source:
        if b"iteration" not in line:
            continue
        clean = _COLOUR.sub(b"", line) if b"\x1b" in line else line
        for fields in _iterations(clean):
            reader.take(fields)
        if EVALUATION in reading.builders and (found := _VALIDATION.search(clean)):
            reader.evaluation(int(found[1]), found[2])
    if not reading.records:
        raise source.refused(
            "no training steps found: no iteration line of Megatron-LM, no JSON lines, no CSV "
            "header",
            "name a training log, or its --format",
        )
    reading.notes.extend(reader.notes())
    return reading


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


class _Reader:
    def __init__(self, reading: Reading, columns: Columns) -> None:
        self._reading = reading
        self._columns = columns
        self._keys: dict[str, bytes] = {}
        self._without_loss: list[int] = []
        self._skips: list[int] = []
        self._nans: list[int] = []

    def take(self, fields: _Fields) -> None:
        """One iteration line."""
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
                self._without_loss.append(fields.step)
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
            for step in self._without_loss:
                builder.add(step, math.nan)
        return key

    def evaluation(self, step: int, text: bytes) -> None:
        """A validation line."""
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
