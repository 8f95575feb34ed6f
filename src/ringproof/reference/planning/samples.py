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
    """One sequence, measured alone.

    Attributes:
        length: Tokens of the sequence.
        cp_size: Ranks that shared it.
        seconds: Forward and backward of a microbatch with only this sequence, pipeline and
            gradient reduction left out.
        attention_only: Only the attention of all layers was timed, nothing else.
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

    Attributes:
        microbatches: What ran at the same time: per microbatch, per group its size and the
            lengths of its sequences.
        seconds: The whole step, its planning left out: also what does not depend on the batch,
            such as the reduction of gradients and the optimiser.
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

    A step's ``planning_seconds``, where it has them, are taken off. Other records of a log, such
    as evaluations, have no seconds and are passed over.

    Args:
        text: The lines.
        source: Their file, for messages.
        skip: So many steps at the beginning are left out: a trainer's first ones compile.

    Raises:
        InputError: A line that is not a measurement; names it.
    """
    found: list[Measurement] = []
    steps = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        measurement = _parsed(_object(line, f"{source}:{number}"), f"{source}:{number}")
        steps += isinstance(measurement, Step)
        if measurement is not None and not (isinstance(measurement, Step) and steps <= skip):
            found.append(measurement)
    return tuple(found)


def measurement_from_json(data: Any, where: str) -> Measurement:
    """What `measurement_json` wrote.

    Raises:
        InputError: Something else.
    """
    found = _parsed(data, where) if isinstance(data, Mapping) else None
    if found is None:
        raise InputError(where, None, "is not a measurement", "correct it")
    return found


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


def _object(line: str, where: str) -> Mapping[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(where, line, "is not JSON", "write one object per line") from None
    if not isinstance(data, Mapping):
        raise InputError(where, line, "is not a JSON object", "write one object per line")
    return data


def _parsed(data: Mapping[str, Any], where: str) -> Measurement | None:
    """The measurement of a record; ``None`` for a record of something else."""
    if "step_seconds" in data:
        return _step(data, where)
    if not {"length", "cp_size", "seconds"} & set(data):
        return None
    only = data.get("attention_only", False)
    if not isinstance(only, bool):
        problem = "is neither true nor false"
        raise InputError(f"{where}: attention_only", only, problem, "correct it")
    length, size = (_whole(data.get(name), f"{where}: {name}") for name in ("length", "cp_size"))
    return Sample(length, size, _seconds(data.get("seconds"), f"{where}: seconds"), only)


def _step(data: Mapping[str, Any], where: str) -> Step:
    seconds = _seconds(data["step_seconds"], f"{where}: step_seconds")
    if "planning_seconds" in data:
        seconds -= _seconds(data["planning_seconds"], f"{where}: planning_seconds")
    plan, microbatches = data.get("plan"), data.get("microbatches")
    if not isinstance(plan, Mapping) and not isinstance(microbatches, list):
        problem = "the step does not say which lengths ran on which CP size"
        raise InputError(where, None, problem, "log its plan, or microbatches with their lengths")
    try:
        found = _of_plan(plan) if isinstance(plan, Mapping) else _of_groups(microbatches)
    except (TypeError, KeyError, IndexError, AttributeError):
        name = "plan" if isinstance(plan, Mapping) else "microbatches"
        raise InputError(f"{where}: {name}", None, "has another form", "see --help") from None
    for microbatch in found:
        for size, lengths in microbatch:
            _whole(size, f"{where}: cp_size")
            for length in lengths:
                _whole(length, f"{where}: lengths")
    return Step(found, seconds)


def _of_plan(plan: Mapping[str, Any]) -> Microbatches:
    if plan["version"] != VERSION:
        raise KeyError
    lengths = plan["lengths"]
    return tuple(
        tuple(
            (len(group["ranks"]), tuple(lengths[index] for index in group["sequences"]))
            for group in microbatch["groups"]
            if group["sequences"]
        )
        for microbatch in plan["microbatches"]
    )


def _of_groups(microbatches: Any) -> Microbatches:
    return tuple(
        tuple((group["cp_size"], tuple(group["lengths"])) for group in microbatch)
        for microbatch in microbatches
    )


def _whole(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value <= MAX_LENGTH:
        return value
    raise InputError(where, value, "is not a whole number", "correct it")


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30:
        return float(value)
    raise InputError(where, value, "is not a number of seconds", "correct it")
