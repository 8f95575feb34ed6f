"""JSON lines: the trainer's own log, and any other with one object per step.

The trainer writes ``{"kind": "run", ...}`` once, then ``{"kind": "step", "step": 1, "loss": ...,
"grad_norm": ...}`` for each step and ``{"kind": "evaluation", "step": 10, "loss": ...}``, with
every digit of every float. Other writers leave ``kind`` out; unknown kinds and keys are passed
over. A name may lead into nested objects: ``losses.lm``.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from ringproof.harness.logs.training.columns import EVALUATION, LOSS, STEP, Columns, plain
from ringproof.harness.logs.training.reading import Reading, number, step_number
from ringproof.harness.logs.training.source import Source

_STEP_KIND, _EVALUATION_KIND = "step", "evaluation"


def read_jsonl(source: Source, columns: Columns) -> Reading:
    """All steps of a JSON-lines log."""
    reading = Reading.of(columns)
    step = _Finder(columns.names(STEP))
    finders = {name: _Finder(columns.names(name)) for name in columns.series}
    if EVALUATION in finders and EVALUATION not in columns.chosen:
        del finders[EVALUATION]
    evaluation = _Finder(columns.names(LOSS))
    for place, line in enumerate(source, 1):
        record = _object(line)
        if record is None:
            if not line.isspace():
                reading.damage(place)
            continue
        kind = record.get("kind", _STEP_KIND)
        if kind == _STEP_KIND:
            _take(record, reading, step, finders)
        elif kind == "run":
            reading.exact = True
        elif kind == _EVALUATION_KIND and EVALUATION in reading.builders:
            _take(record, reading, step, {EVALUATION: evaluation})
    return reading


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
