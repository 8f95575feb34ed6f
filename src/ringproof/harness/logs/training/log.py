"""A training log as read: its series, and what its reader should know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from ringproof.harness.logs.training.columns import Columns
from ringproof.harness.logs.training.jsonl import read_jsonl
from ringproof.harness.logs.training.megatron import read_megatron
from ringproof.harness.logs.training.reading import Reading
from ringproof.harness.logs.training.series import Series
from ringproof.harness.logs.training.source import CSV, JSONL, Source, opened
from ringproof.harness.logs.training.table import read_table


@dataclass(frozen=True)
class TrainingLog:
    """One run's log.

    Attributes:
        role: ``A`` or ``B``.
        format: ``jsonl``, ``megatron`` or ``csv``.
        series: Those wanted that the log holds, by name.
        exact: Values were written with all their digits, by contract.
        averaged: A loss is the mean over the steps since the line before.
        names: Quantities that its first records hold.
        notes: What the reader of the verdict should know.
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
    with opened(path, role, stdin=stdin, wanted=format_name) as source:
        reading = _read(source, columns)
        series = {
            name: builder.finish() for name, builder in reading.builders.items() if len(builder)
        }
        if not series:
            raise _without_series(source, reading, columns)
        return TrainingLog(
            path,
            role,
            source.format,
            series,
            reading.exact,
            reading.averaged,
            tuple(reading.seen),
            tuple(_notes(source, reading, series)),
        )


def _read(source: Source, columns: Columns) -> Reading:
    if source.format == JSONL:
        return read_jsonl(source, columns)
    if source.format == CSV:
        return read_table(source, columns)
    return read_megatron(source, columns)


def _without_series(source: Source, reading: Reading, columns: Columns) -> Exception:
    wanted = " or ".join(columns.series)
    if not reading.records:
        held = ", ".join(list(reading.seen)[:12])
        problem = f"no training steps found among {held}" if held else "no training steps found"
        return source.refused(problem, "name a training log, or its step with --columns step=NAME")
    held = ", ".join(list(reading.seen)[:12]) or "nothing"
    remedy = f"name the quantity: --columns '{columns.series[0]}=NAME'"
    return source.refused(f"its steps hold no {wanted} but {held}", remedy)


def _notes(source: Source, reading: Reading, series: Mapping[str, Series]) -> Iterator[str]:
    yield from source.notes
    if reading.damaged:
        lines = "line" if reading.damaged == 1 else "lines"
        yield (
            f"{reading.damaged:,} {lines} could not be read, the first is line "
            f"{reading.first_damaged:,}"
        )
    yield from reading.notes
    repeated = max(series.values(), key=lambda one: one.repeated)
    if repeated.repeated:
        changed = max(one.changed for one in series.values())
        others = f"{changed:,} with another value" if changed else "all with the same values"
        yield (
            f"{repeated.repeated:,} steps stand more than once from step "
            f"{repeated.first_repeated:,} on ({others}): the later one counts"
        )
