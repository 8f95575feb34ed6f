"""Read the series of one training log in one pass.

Neither compression nor format is taken from the file's name: gzip is known by its first bytes, the
format by the first lines.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

from ringproof.logs.lines import OpenLog, opened
from ringproof.logs.training.curves import CurveFinding, judge_curves
from ringproof.logs.training.formats import (
    CSV,
    JSONL,
    MEGATRON,
    TEXT,
    JsonReader,
    MegatronReader,
    Reader,
    TableReader,
    recognised,
)
from ringproof.logs.training.quantities import GRAD_NORM, JUDGED, LOSS, Columns
from ringproof.logs.training.series import EXACT_DIGITS, Series, significant_digits
from ringproof.logs.training.shaped import ShapeReader, is_shaped

_HEAD_LINES = 2000
_UTF8_MARK = b"\xef\xbb\xbf"


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

    def digits(self, name: str) -> int:
        """Return the significant digits that a series shows, counted to `EXACT_DIGITS`."""
        # Megatron's lines have a precision of their own, and the trainer writes every digit.
        if self.exact or self.averaged:
            return EXACT_DIGITS
        shown = map(significant_digits, filter(math.isfinite, self.series[name].values))
        return min(max(shown, default=0), EXACT_DIGITS)

    @cached_property
    def curve_findings(self) -> tuple[CurveFinding, ...]:
        """What is conspicuous in its curves."""
        loss, grad_norm = (self.series.get(name, Series(name, name)) for name in JUDGED)
        return judge_curves(loss, grad_norm)


def read_log(
    path: str,
    role: str,
    columns: Columns,
    *,
    format_name: str | None = None,
    stdin: BinaryIO | None = None,
) -> TrainingLog:
    """Read one log.

    Raises:
        InputError: It cannot be read, or holds no step with a wanted value.
    """
    with opened(role, path, what="training log", stdin=stdin) as log:
        blocks = log.blocks()
        first = next(blocks, b"")
        if not first:
            raise log.refused("is empty; name a training log")
        first = first.removeprefix(_UTF8_MARK)
        head = first.splitlines()[:_HEAD_LINES]
        found = format_name or recognised(head)
        if format_name is None and found in (MEGATRON, CSV) and is_shaped(head):
            found = TEXT
        reader: Reader
        if found == CSV:
            reader = TableReader(columns, log.refused)
        else:
            kinds = {JSONL: JsonReader, TEXT: ShapeReader}
            reader = kinds.get(found, MegatronReader)(columns)
        for block in itertools.chain((first,), blocks):
            reader.read(block)
    series = {name: one for name, one in reader.series.items() if len(one)}
    if not series:
        raise _without_series(log, found, reader)
    for one in series.values():
        one.settle()
    notes = (*([log.damage] if log.damage else []), *reader.notes(), *_restarts(series.values()))
    names = tuple(reader.seen)
    return TrainingLog(path, role, found, series, reader.exact, reader.averaged, names, notes)


def _without_series(log: OpenLog, format_name: str, reader: Reader) -> Exception:
    held = ", ".join(list(reader.seen)[:12])
    if reader.records:
        wanted = reader.columns.series
        return log.refused(
            f"has steps that hold no {' or '.join(wanted)} but {held or 'nothing'}; name the "
            f"quantity: --columns '{wanted[0]}=NAME'"
        )
    if format_name == MEGATRON:
        return log.refused(
            "has no training steps: no line with a step and a loss, no JSON lines, no CSV header; "
            "name a training log, or its --log-format"
        )
    among = f" among {held}" if held else ""
    return log.refused(
        f"has no training steps{among}; name a training log, or its step with --columns step=NAME"
    )


def _restarts(series: Iterable[Series]) -> Iterator[str]:
    most = max(series, key=lambda one: one.repeated)
    if most.repeated:
        changed = max(one.changed for one in series)
        others = f"{changed:,} with another value" if changed else "all with the same values"
        yield (
            f"{most.repeated:,} steps stand more than once from step {most.first_repeated:,} on "
            f"({others}): the later one counts"
        )


_JSON_LINE = re.compile(rb'(?m)^\{"[^\r\n]*loss[^\r\n]*')


class CurveReader:
    """Collects loss and gradient norm from a text log, in which any other lines may stand."""

    def __init__(self) -> None:
        self._megatron, self._json = MegatronReader(Columns()), JsonReader(Columns())
        self._shaped = ShapeReader(Columns())

    def take(self, block: bytes) -> None:
        """Take the lines of a block that show a training step."""
        self._megatron.read(block)
        # The expression alone would try every line; most logs have no such line at all.
        if block.startswith(b'{"') or b'\n{"' in block:
            for line in _JSON_LINE.finditer(block):
                self._json.take(line[0])
        if not self._megatron.records and not self._json.records and b"oss" in block:
            self._shaped.read(block)

    def findings(self) -> tuple[CurveFinding, ...]:
        """Return what is conspicuous in the curves."""
        readers = (self._megatron, self._json, self._shaped)
        reader: Reader = next((one for one in readers if one.records), self._json)
        for step in self._megatron.without_loss:  # no line at all had one
            reader.series[LOSS].add(step, math.nan)
        for series in reader.series.values():
            series.settle()
        return judge_curves(reader.series[LOSS], reader.series[GRAD_NORM])
