"""Measurements that calibration fits: one sequence, or a whole step of a trainer's log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringproof.errors import InputError
from ringproof.reference.planning.lengths import MAX_LENGTH
from ringproof.reference.planning.plan import VERSION


@dataclass(frozen=True)
class Sample:
    """One sequence, measured alone on ``cp_size`` ranks.

    ``seconds`` is the forward and backward of a microbatch with only this sequence, pipeline and
    gradient reduction left out; with ``attention_only``, that of the attention of all layers.
    """

    length: int
    cp_size: int
    seconds: float
    attention_only: bool = False

    @property
    def microbatches(self) -> Microbatches:
        """The sequence as a step of its own."""
        return (((self.cp_size, (self.length,)),),)


@dataclass(frozen=True)
class Step:
    """One step of a training run without pipeline stages.

    ``microbatches`` has, per microbatch and group, its size and the lengths of its sequences.
    ``seconds`` is the whole step without its planning: also what does not depend on the batch, such
    as the reduction of gradients and the optimiser.
    """

    microbatches: Microbatches
    seconds: float


Load = tuple[int, tuple[int, ...]]
Microbatches = tuple[tuple[Load, ...], ...]
Measurement = Sample | Step


def parse_samples(text: str, source: str = "samples", skip: int = 0) -> tuple[Measurement, ...]:
    """Measurements from JSON lines, each one of:

    * ``{"length": 8192, "cp_size": 2, "seconds": 0.012}``, and ``"attention_only": true``
    * ``{"step_seconds": 0.81, "plan": {...}}``: a step and the plan it followed, as the planner
      writes it
    * ``{"step_seconds": 0.81, "microbatches": [[{"cp_size": 2, "lengths": [8192, 512]}, ...],
      ...]}``: the same, with lengths in place of a plan's ids

    A step's ``planning_seconds``, where it has them, are subtracted. Other records of a log, such
    as evaluations, have no seconds and are skipped.

    Args:
        text: The lines.
        source: Their file, for messages.
        skip: Number of steps to leave out at the beginning: a trainer's first ones compile.

    Raises:
        InputError: A line that is not a measurement; names it.
    """
    found: list[Measurement] = []
    steps = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where, remedy = f"{source}:{number}", "write one object per line"
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(where, line, "is not JSON", remedy) from None
        if not isinstance(data, Mapping):
            raise InputError(where, line, "is not a JSON object", remedy)
        measurement = measurement_from_json(data, where)
        steps += isinstance(measurement, Step)
        if measurement is not None and not (isinstance(measurement, Step) and steps <= skip):
            found.append(measurement)
    return tuple(found)


def measurement_json(item: Measurement) -> dict[str, Any]:
    """One measurement as plain data, as `parse_samples` reads it."""
    if isinstance(item, Step):
        groups = [
            [{"cp_size": size, "lengths": list(lengths)} for size, lengths in microbatch]
            for microbatch in item.microbatches
        ]
        return {"step_seconds": item.seconds, "microbatches": groups}
    data = {"length": item.length, "cp_size": item.cp_size, "seconds": item.seconds}
    return {**data, "attention_only": True} if item.attention_only else data


def measurement_from_json(data: Mapping[str, Any], where: str) -> Measurement | None:
    """The measurement of a record; ``None`` for a record of something else.

    Raises:
        InputError: A measurement with a field that is missing or has another form.
    """
    if "step_seconds" in data:
        seconds = _seconds(data, "step_seconds", where)
        if "planning_seconds" in data:
            seconds -= _seconds(data, "planning_seconds", where)
        return Step(_microbatches(data, where), seconds)
    if not {"length", "cp_size", "seconds"} & set(data):
        return None
    only = data.get("attention_only", False)
    if not isinstance(only, bool):
        problem = "is neither true nor false"
        raise InputError(f"{where}: attention_only", only, problem, "correct it")
    length, size = (_whole(data.get(name), f"{where}: {name}") for name in ("length", "cp_size"))
    return Sample(length, size, _seconds(data, "seconds", where), only)


def _microbatches(data: Mapping[str, Any], where: str) -> Microbatches:
    plan, listed = data.get("plan"), data.get("microbatches")
    if not isinstance(plan, Mapping) and not isinstance(listed, list):
        problem = "the step does not say which lengths ran on which CP size"
        raise InputError(where, None, problem, "log its plan, or microbatches with their lengths")
    try:
        if isinstance(plan, Mapping):
            if plan["version"] != VERSION:
                raise KeyError
            found = [
                [
                    (len(group["ranks"]), [plan["lengths"][index] for index in group["sequences"]])
                    for group in microbatch["groups"]
                    if group["sequences"]
                ]
                for microbatch in plan["microbatches"]
            ]
        else:
            found = [
                [(group["cp_size"], group["lengths"]) for group in one] for one in listed or ()
            ]
        return tuple(
            tuple(
                (
                    _whole(size, f"{where}: cp_size"),
                    tuple(_whole(length, f"{where}: lengths") for length in lengths),
                )
                for size, lengths in microbatch
            )
            for microbatch in found
        )
    except (TypeError, KeyError, IndexError, AttributeError):
        name = "plan" if isinstance(plan, Mapping) else "microbatches"
        raise InputError(f"{where}: {name}", None, "has another form", "see --help") from None


def _whole(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value <= MAX_LENGTH:
        return value
    raise InputError(where, value, "is not a whole number", "correct it")


def _seconds(data: Mapping[str, Any], name: str, where: str) -> float:
    value = data.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30:
        return float(value)
    raise InputError(f"{where}: {name}", value, "is not a number of seconds", "correct it")
