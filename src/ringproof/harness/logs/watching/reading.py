"""The steps of a growing training log, line by line, by the readers of `harness.logs.training`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ringproof.harness.logs.lines import Origin
from ringproof.harness.logs.parsing import parse_engine
from ringproof.harness.logs.training.log import (
    CSV,
    ITERATION,
    JsonReader,
    MegatronReader,
    Reader,
    TableReader,
    recognised,
)
from ringproof.harness.logs.training.series import GRAD_NORM, LOSS, Columns

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
        is_table: Whether the file is CSV, of which an unfinished line may end inside a number.
        engine_sizes: Where lines of Transformer Engine are counted, by the CP size of attention.
    """

    def __init__(self, origin: Origin, columns: Columns, engine_sizes: Counter[int]) -> None:
        self._json = JsonReader(columns)
        self._megatron = MegatronReader(columns)
        self._table = TableReader(columns, origin)
        self._begun = False
        self.is_table = False
        self.engine_sizes = engine_sizes

    def take(self, line: bytes) -> Iterable[Step]:
        """Return the steps of one line, mostly one or none.

        Raises:
            InputError: A CSV header has no column for any quantity, or several.
        """
        if not self._begun:
            self._begun = True
            self.is_table = recognised([line]) == CSV
        if self.is_table:
            self._table.take(line)
            return _drained(self._table)
        if b"iteration" in line and ITERATION.search(line):  # the former is far cheaper
            self._megatron.take(line)
            nans, self._megatron.without_loss = self._megatron.without_loss, []
            return _drained(self._megatron, nans)
        if line.startswith(b"\0"):  # the hole where a file was emptied under its writer
            line = line.lstrip(b"\0")
        if line.startswith(b"{"):
            self._json.take(line)
            return _drained(self._json, histogram=line)
        if _ENGINE in line:
            found = parse_engine(line.decode("utf-8", errors="replace"))
            size = found and (found.cp_size if found.context_parallel else 1)
            if size:
                self.engine_sizes[size] += 1
        return ()


def _drained(
    reader: Reader, nans: list[int] | None = None, histogram: bytes | None = None
) -> Iterator[Step]:
    """Take the values out of the reader, so that it does not grow."""
    steps: dict[int, dict[str, float]] = {step: {LOSS: math.nan} for step in nans or ()}
    for name, series in reader.series.items():
        for step, value in series.drain() if len(series) else ():
            milliseconds = name == _MILLISECONDS
            where = SECONDS if milliseconds else name
            steps.setdefault(step, {})[where] = value / 1000 if milliseconds else value
    sizes = _histogram(histogram) if histogram is not None and steps else {}
    for step in sorted(steps):
        yield Step(step, steps[step], sizes)


def _histogram(line: bytes) -> dict[int, int]:
    found = _HISTOGRAM.search(line)
    return {int(size): int(count) for size, count in _COUNT.findall(found[1])} if found else {}
