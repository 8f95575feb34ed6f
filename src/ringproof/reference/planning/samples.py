"""Measurements that calibration fits: one sequence, or a whole step of a trainer's log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt
from pydantic.dataclasses import dataclass

from ringproof.errors import InputError
from ringproof.reference.planning.forms import built
from ringproof.reference.planning.lengths import MAX_LENGTH
from ringproof.reference.planning.validate import PlanForm

_Length = Annotated[int, Field(le=MAX_LENGTH, strict=True)]
_Seconds = Annotated[float, Field(gt=-1e30, lt=1e30, strict=True)]
_REMEDY = "see --help for the form of measurements"


@dataclass(frozen=True)
class Sample:
    """One sequence, measured alone on ``cp_size`` ranks.

    ``seconds`` is the forward and backward of a microbatch with only this sequence, pipeline and
    gradient reduction left out; with ``attention_only``, that of the attention of all layers.
    """

    length: _Length
    cp_size: StrictInt
    seconds: _Seconds
    attention_only: StrictBool = False

    @property
    def microbatches(self) -> Microbatches:
        """The sequence as a step of its own."""
        return (((self.cp_size, (self.length,)),),)


@dataclass(frozen=True)
class PlannedStep:
    """One step of a training run without pipeline stages.

    ``microbatches`` has, per microbatch and group, its size and the lengths of its sequences.
    ``seconds`` is the whole step without its planning: also what does not depend on the batch, such
    as the reduction of gradients and the optimiser.
    """

    microbatches: Microbatches
    seconds: float


Load = tuple[int, tuple[int, ...]]
Microbatches = tuple[tuple[Load, ...], ...]
Measurement = Sample | PlannedStep


class _Load(BaseModel):
    cp_size: StrictInt
    lengths: list[_Length]


class _StepForm(BaseModel):
    model_config = ConfigDict(strict=True)

    step_seconds: _Seconds
    planning_seconds: _Seconds = 0.0
    plan: PlanForm | None = None
    microbatches: list[list[_Load]] | None = None

    def loads(self, where: str) -> Microbatches:
        """Size and lengths of each group, by microbatch."""
        if self.plan is None and self.microbatches is None:
            problem = "the step does not say which lengths ran on which CP size"
            remedy = "log its plan, or microbatches with their lengths"
            raise InputError(where, None, problem, remedy)
        if self.plan is None:
            return tuple(
                tuple((load.cp_size, tuple(load.lengths)) for load in microbatch)
                for microbatch in self.microbatches or ()
            )
        lengths = dict(enumerate(self.plan.lengths))
        try:
            return tuple(
                tuple(
                    (len(group.ranks), tuple(lengths[index] for index in group.sequences))
                    for group in microbatch.groups
                    if group.sequences
                )
                for microbatch in self.plan.microbatches
            )
        except KeyError as error:
            raise InputError(
                f"{where}: plan", error, "there is no such sequence", _REMEDY
            ) from None


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
        steps += isinstance(measurement, PlannedStep)
        if measurement is not None and not (isinstance(measurement, PlannedStep) and steps <= skip):
            found.append(measurement)
    return tuple(found)


def measurement_json(item: Measurement) -> dict[str, Any]:
    """One measurement as plain data, as `parse_samples` reads it."""
    if isinstance(item, Sample):
        return {name: value for name, value in asdict(item).items() if value is not False}
    groups = [
        [{"cp_size": size, "lengths": list(lengths)} for size, lengths in microbatch]
        for microbatch in item.microbatches
    ]
    return {"step_seconds": item.seconds, "microbatches": groups}


def measurement_from_json(data: Mapping[str, Any], where: str) -> Measurement | None:
    """The measurement of a record; ``None`` for a record of something else.

    Raises:
        InputError: A measurement with a field that is missing or has another form.
    """
    if "step_seconds" in data:
        step = built(_StepForm, data, f"{where}: ", _REMEDY)
        return PlannedStep(step.loads(where), step.step_seconds - step.planning_seconds)
    if {"length", "cp_size", "seconds"} & set(data):
        return built(Sample, dict(data), f"{where}: ", _REMEDY)
    return None
