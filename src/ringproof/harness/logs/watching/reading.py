"""The steps of a growing training log, line by line, by the readers of `harness.logs.training`."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ringproof.harness.logs.lines import Origin
from ringproof.harness.logs.parsing import parse_engine
from ringproof.harness.logs.training.log import (
    CSV,
    DELIMITERS,
    ITERATION,
    JsonReader,
    MegatronReader,
    TableReader,
    recognised,
)
from ringproof.harness.logs.training.series import GRAD_NORM, LOSS, Columns, Reading

SECONDS, TOKENS, TFLOPS = "step_seconds", "tokens_per_second", "tflops_per_gpu"
_MILLISECONDS = "step_milliseconds"
WATCHED = (LOSS, GRAD_NORM, SECONDS, _MILLISECONDS, TOKENS, TFLOPS)
"""Quantities that are looked for in each step."""

_HISTOGRAM = re.compile(rb'"cp_histogram": ?\{([^{}]*)\}')
_COUNT = re.compile(rb'"([0-9]{1,9})": ?([0-9]{1,15})')
_ENGINE = b"Running with config="


@dataclass(frozen=True)
class Step:
    """What one line says of a step.

    Attributes:
        values: By name, of `WATCHED`; the iteration time is in seconds.
        cp_sizes: Sequences by the size of their CP group.
    """

    number: int
    values: Mapping[str, float]
    cp_sizes: Mapping[int, int] = field(default_factory=dict)


class StepReader:
    """Turns the lines of one file into steps. JSON and Megatron's lines may stand side by side.

    A file whose first line is a CSV header with a step is read as CSV.

    Attributes:
        engine_sizes: CP sizes with which Transformer Engine ran attention, with the number of lines
            that say so.
    """

    def __init__(self, origin: Origin, columns: Columns) -> None:
        self._origin = origin
        self._columns = columns
        self._json = JsonReader(columns)
        self._megatron = MegatronReader(columns)
        self._table: TableReader | None = None
        self._delimiter = ","
        self._count = 0
        self.engine_sizes: dict[int, int] = {}

    @property
    def is_table(self) -> bool:
        """Whether the file is CSV, of which an unfinished line may end inside a number."""
        return self._table is not None

    def take(self, line: bytes) -> Iterable[Step]:
        """Return the steps of one line, mostly one or none.

        Raises:
            InputError: A CSV header has no column for any quantity, or several.
        """
        self._count += 1
        if self._table is not None:
            self._table.take(self._row(line))
            return _drained(self._table.reading)
        if b"iteration" in line and ITERATION.search(line):  # the former is far cheaper
            self._megatron.take(line)
            nans, self._megatron.without_loss = self._megatron.without_loss, []
            return _drained(self._megatron.reading, nans)
        if line.startswith(b"\0"):  # the hole where a file was emptied under its writer
            line = line.lstrip(b"\0")
        if line.startswith(b"{"):
            self._json.take(line)
            return _drained(self._json.reading, histogram=line)
        if self._count == 1 and recognised([line]) == CSV:
            self._delimiter = max(DELIMITERS, key=line.decode(errors="replace").count)
            self._table = TableReader(self._origin, self._columns, self._row(line))
        elif _ENGINE in line:
            self._engine(line)
        return ()

    def _row(self, line: bytes) -> list[str]:
        text = line.decode("utf-8-sig", errors="replace").replace("\0", "\ufffd")
        try:
            return next(csv.reader([text], delimiter=self._delimiter), [])
        except csv.Error:
            return []

    def _engine(self, line: bytes) -> None:
        found = parse_engine(line.decode("utf-8", errors="replace"))
        size = found and (found.size if found.context_parallel else 1)
        if size:
            self.engine_sizes[size] = self.engine_sizes.get(size, 0) + 1


def _drained(
    reading: Reading, nans: list[int] | None = None, histogram: bytes | None = None
) -> Iterator[Step]:
    """Take the values out of the reading, so that it does not grow."""
    steps: dict[int, dict[str, float]] = {step: {LOSS: math.nan} for step in nans or ()}
    for name, builder in reading.builders.items():
        for step, value in builder.drain() if len(builder) else ():
            milliseconds = name == _MILLISECONDS
            where = SECONDS if milliseconds else name
            steps.setdefault(step, {})[where] = value / 1000 if milliseconds else value
    sizes = _histogram(histogram) if histogram is not None and steps else {}
    for step in sorted(steps):
        yield Step(step, steps[step], sizes)


def _histogram(line: bytes) -> dict[int, int]:
    found = _HISTOGRAM.search(line)
    return {int(size): int(count) for size, count in _COUNT.findall(found[1])} if found else {}
