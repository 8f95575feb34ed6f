"""Fit the rates of a machine to measurements, by least squares on relative errors.

A measurement is the time of one sequence on one group, or of a whole step of a trainer with the
plan it followed. A rate keeps its preset where the measurements cannot tell it apart from what was
found before (CP size 1 alone says nothing of links), and where they do not contradict the preset.
Links that hide everything tell nothing of their speed, so the fit starts from several speeds, and
the best fit is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ringproof.errors import InputError
from ringproof.reference.planning.costs import FloatArray
from ringproof.reference.planning.domain import IntArray
from ringproof.reference.planning.forms import built
from ringproof.reference.planning.hardware import Hardware
from ringproof.reference.planning.samples import (
    Measurement,
    PlannedStep,
    Sample,
    measurement_from_json,
    measurement_json,
)
from ringproof.reference.planning.timing import StepCost

UNKNOWNS = (
    "attention_share",
    "linear_share",
    "attention_half_rows",
    "layer_launch_seconds",
    "intra_bytes_per_second",
    "inter_bytes_per_second",
    "intra_latency_seconds",
    "inter_latency_seconds",
)
"""Fields of `Hardware` that are fitted."""
_REST = "rest_seconds"
"""Seconds of a step that no plan changes."""
_ORDER = (*UNKNOWNS[:3], _REST, *UNKNOWNS[3:])
"""Order in which unknowns are taken. One that depends linearly on those before keeps its value."""
_RESIDUAL = 1e-3
"""A column is independent when this part of it is not a sum of the columns before it."""
_STARTS = (1.0, 0.03, 0.3, 3.0, 30.0)
"""Times the preset's seconds per byte: from links that hide everything to links that hide none."""
_FARTHEST = math.log(1e3)
"""How far from the preset an unknown is looked for."""
_EDGE = 0.99 * _FARTHEST
_MOST_ROUNDS = 50
"""Steps of a fit, which takes fewer where the measurements tell every unknown."""
_NEXT_TO_NOTHING = 1e-9
"""What stands for 0, which has no logarithm: a number of rows or seconds that changes no time."""
_ROUNDING = 1e-6
"""A column as short as this tells nothing."""
_NEWS = 4.0
"""Two standard errors, squared. A smaller improvement does not show that an unknown differs from
its preset."""
_EXACT = 1e-12
"""Squared relative error that rounding explains."""
LEAST_LENGTHS = 3
"""Fewer lengths do not tell squares, multiples and constants apart."""
MAX_SAMPLES, MAX_SEQUENCES = 20_000, 200_000
"""Limits on the measurements, which are fitted in about a minute."""


@dataclass(frozen=True)
class Row:
    """A measurement, and what the fitted model says."""

    sample: Measurement
    predicted_seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted_seconds / self.sample.seconds - 1


@dataclass(frozen=True)
class Calibration:
    """What was found.

    Attributes:
        peak_flops_per_second: Peak of the hardware the fit started from; shares refer to it.
        fitted: Fields of `Hardware` and their new values.
        errors: Standard error of each, relative to it, as far as the scatter of the measurements
            tells; none for what was fitted at the edge of what is possible.
        kept: Fields of which the measurements say nothing that contradicts the preset.
        rest_seconds: What a step takes beside its microbatches (gradient reduction, optimiser);
            0 where no step was measured.
        rows: Measured against predicted, in the order of the measurements.
    """

    peak_flops_per_second: float
    fitted: Mapping[str, float]
    errors: Mapping[str, float]
    kept: tuple[str, ...]
    rest_seconds: float
    rows: tuple[Row, ...]

    @property
    def mean_absolute_error(self) -> float:
        """Mean error of the predictions, relative to what was measured."""
        return sum(abs(row.error) for row in self.rows) / len(self.rows)

    def apply(self, machine: Hardware) -> Hardware:
        """The machine with what was found in place of its own values.

        Raises:
            InputError: A machine with another peak: the fitted shares are not shares of that.
        """
        if machine.peak_flops_per_second != self.peak_flops_per_second:
            problem = f"was fitted to a peak of {self.peak_flops_per_second:g} FLOP/s"
            remedy = "give the hardware it was fitted for, or fit it anew"
            raise InputError("calibration", machine.peak_flops_per_second, problem, remedy)
        values = {**vars(machine), **self.fitted, "name": f"{machine.name}-calibrated"}
        return built(Hardware, values, "hardware", "fit it anew")

    def as_json(self) -> dict[str, Any]:
        """Plain data; `calibration_from_json` reads it back."""
        return {
            "version": 1,
            "peak_flops_per_second": self.peak_flops_per_second,
            "fitted": dict(self.fitted),
            "errors": dict(self.errors),
            "kept": list(self.kept),
            "rest_seconds": self.rest_seconds,
            "mean_absolute_error": self.mean_absolute_error,
            "samples": [
                {**measurement_json(row.sample), "predicted_seconds": row.predicted_seconds}
                for row in self.rows
            ],
        }


class _Predicted(BaseModel):
    model_config = ConfigDict(extra="allow")

    predicted_seconds: float


class _CalibrationForm(BaseModel):
    version: Literal[1]
    peak_flops_per_second: float
    fitted: dict[str, float]
    errors: dict[str, float]
    kept: tuple[str, ...]
    rest_seconds: float
    samples: Annotated[list[_Predicted], Field(min_length=1)]


def calibration_from_json(data: Any) -> Calibration:
    """What `Calibration.as_json` wrote.

    Raises:
        InputError: Something else.
    """
    form = built(_CalibrationForm, data, "calibration", "fit it anew")
    rows = []
    for item in form.samples:
        sample = measurement_from_json(item.model_extra or {}, "calibration.samples")
        if sample is not None:
            rows.append(Row(sample, item.predicted_seconds))
    if {*form.kept, *form.fitted} != set(UNKNOWNS) or len(rows) < len(form.samples):
        problem = "has other rates, or samples that are no measurements"
        raise InputError("calibration", None, problem, "fit it anew")
    given = form.peak_flops_per_second, form.fitted, form.errors, form.kept, form.rest_seconds
    return Calibration(*given, tuple(rows))


@dataclass(frozen=True)
class Table:
    """Measurements as arrays. A group is a load; loads and microbatches are numbered in order.

    Attributes:
        model: The model that was measured, on the machine where the fit starts.
        seconds: What each measurement took.
        by_size: Per group size its loads, and the load and length of each of its sequences.
        first_load: First load of each microbatch.
        measurement_of: Measurement of each microbatch.
        whole: Per load and per microbatch, 1 unless only attention was timed.
        steps: Per measurement, 1 for a whole step.
    """

    model: StepCost
    seconds: FloatArray
    by_size: tuple[tuple[int, IntArray, IntArray, IntArray], ...]
    first_load: IntArray
    measurement_of: IntArray
    whole: tuple[FloatArray, FloatArray]
    steps: FloatArray

    def predicted(self, values: Mapping[str, float]) -> FloatArray:
        """Seconds of each measurement on the machine with these values.

        Shares above 1 are possible: their number counts, not that it is a share.
        """
        peak, scale = self.model.machine.peak_flops_per_second, 10 * math.exp(_FARTHEST)
        given: dict[str, Any] = {**values}
        rest = given.pop(_REST, 0.0)
        for name in ("attention_share", "linear_share"):
            given[name] /= scale
        machine = replace(self.model.machine, peak_flops_per_second=peak * scale, **given)
        model, loads = replace(self.model, machine=machine), np.zeros(len(self.whole[0]))
        for size, places, owner, lengths in self.by_size:
            linear = model.linear(lengths, size) * (1 - self.whole[0][owner])
            loads += np.bincount(owner, model.cost(lengths, size) - linear, len(loads))
            loads[places] += model.group_overhead(size)
        longest = np.maximum.reduceat(loads, self.first_load)
        longest += model.microbatch_overhead * self.whole[1]
        times = np.bincount(self.measurement_of, longest, len(self.seconds))
        return times + rest * self.steps


def make_table(measurements: Sequence[Measurement], model: StepCost) -> Table:
    """Flatten measurements; a microbatch without any sequence gets an empty load."""
    loads: dict[int, list[tuple[int, int]]] = {}
    places: dict[int, list[int]] = {}
    whole: list[float] = []
    first_load, measurement_of = [], []
    for place, item in enumerate(measurements):
        only = isinstance(item, Sample) and item.attention_only
        for microbatch in item.microbatches:
            first_load.append(len(whole))
            measurement_of.append(place)
            for size, lengths in microbatch or ((1, ()),):
                places.setdefault(size, []).append(len(whole))
                loads.setdefault(size, []).extend((len(whole), length) for length in lengths)
                whole.append(0.0 if only else 1.0)
    by_size = []
    for size in sorted(places):
        owner, lengths = np.array(loads[size], np.int64).reshape(-1, 2).T
        by_size.append((size, np.array(places[size], np.int64), owner, lengths))
    return Table(
        model,
        np.array([item.seconds for item in measurements]),
        tuple(by_size),
        np.array(first_load, np.int64),
        np.array(measurement_of, np.int64),
        (np.array(whole), np.array(whole)[first_load]),
        np.array([isinstance(item, PlannedStep) for item in measurements], np.float64),
    )


@dataclass(frozen=True)
class _Fit:
    """The unknowns that were fitted, all values, squared relative errors, and their derivatives.

    ``slopes`` has, for each unknown of `_ORDER`, the change of every relative error by a relative
    change of the unknown.
    """

    found: tuple[str, ...]
    values: Mapping[str, float]
    squares: float
    slopes: FloatArray


def fit(samples: Sequence[Measurement], model: StepCost) -> Calibration:
    """Fit what the measurements tell.

    Args:
        samples: Measurements of one model on one machine.
        model: The model and how it ran. Its machine is where the fit starts; its peak, and every
            rate that is not fitted, are kept.

    Raises:
        InputError: Too few measurements, too few different lengths, times that do not grow with
            the square of the length or exceed the machine's peak, or scipy is not installed.
    """
    _check(samples, model)
    table, machine = make_table(samples, model), model.machine
    presets = {name: getattr(machine, name) for name in UNKNOWNS}
    links = {name: presets[name] for name in UNKNOWNS if name.endswith("bytes_per_second")}
    free = _ORDER if table.steps.any() else UNKNOWNS
    tries = []
    for factor in _STARTS:
        start = {**presets, **{name: speed / factor for name, speed in links.items()}}
        tries.append(_solved(table, start, free))
    best = min(tries, key=lambda one: one.squares)
    told = [_ORDER[place] for place in independent(best.slopes)]
    if "attention_share" not in told:
        problem = "lengths do not tell attention from the rest"
        raise InputError("samples", None, problem, "measure more different lengths")
    if len(samples) <= len(told):
        problem = f"{len(told)} unknowns need at least {len(told) + 1} samples"
        raise InputError("samples", len(samples), problem, "measure more lengths and CP sizes")
    best = _without_doubtful(table, _solved(table, best.values, told))
    for name, grows in (("attention_share", "square of the length"), ("linear_share", "length")):
        if name in best.found and best.values[name] > math.exp(_EDGE) * presets[name]:
            problem = f"times do not grow with the {grows}, so there is no {name}"
            raise InputError("samples", None, problem, "measure longer sequences, more often")
    fitted = {name: best.values[name] for name in best.found if name != _REST}
    calibration = Calibration(
        machine.peak_flops_per_second,
        fitted,
        {name: error for name, error in _errors(best, presets).items() if name != _REST},
        tuple(name for name in UNKNOWNS if name not in fitted),
        best.values[_REST],
        tuple(map(Row, samples, table.predicted(best.values).tolist())),
    )
    calibration.apply(machine)  # refuses what is impossible, such as a share above 1
    return calibration


def _solved(table: Table, start: Mapping[str, float], free: Iterable[str]) -> _Fit:
    """Fit the logarithms of the free unknowns from a start; the others keep their preset.

    Raises:
        InputError: scipy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        remedy = "install ringproof[plan], or scipy alone"
        raise InputError("calibrate", None, "needs the package scipy", remedy) from error
    found = [name for name in _ORDER if name in free]
    origin = {name: getattr(table.model.machine, name) or _NEXT_TO_NOTHING for name in UNKNOWNS}
    origin[_REST] = float(table.seconds.min()) / 10 if _REST in found else _NEXT_TO_NOTHING

    def values(logs: FloatArray, names: Sequence[str]) -> dict[str, float]:
        changes = zip(names, np.exp(logs).tolist(), strict=True)
        return origin | {name: origin[name] * change for name, change in changes}

    def errors(logs: FloatArray, names: Sequence[str]) -> FloatArray:
        relative: FloatArray = table.predicted(values(logs, names)) / table.seconds - 1
        return relative

    logs = np.array([math.log(start.get(name, origin[name]) / origin[name]) for name in found])
    limits = (-_FARTHEST, _FARTHEST)
    options = {"bounds": limits, "args": (found,), "max_nfev": _MOST_ROUNDS, "ftol": 1e-12}
    made = least_squares(errors, np.clip(logs, -_EDGE, _EDGE), **options)
    best = values(made.x, found)
    logs = np.array([math.log(best[name] / origin[name]) for name in _ORDER])
    steps = 1e-6 * np.eye(len(_ORDER))
    slopes = [(errors(logs + one, _ORDER) - errors(logs - one, _ORDER)) / 2e-6 for one in steps]
    return _Fit(tuple(found), best, float(np.sum(made.fun**2)), np.stack(slopes, axis=1))


def independent(matrix: FloatArray) -> tuple[int, ...]:
    """Columns, from the left, that are no linear combination of those taken before."""
    taken: list[int] = []
    for index, column in enumerate(matrix.T):
        basis = np.linalg.qr(matrix[:, taken])[0]
        rest, size = column - basis @ (basis.T @ column), float(np.linalg.norm(column))
        if float(np.linalg.norm(rest)) > _RESIDUAL * size and size > _ROUNDING:
            taken.append(index)
    return tuple(taken)


def _without_doubtful(table: Table, best: _Fit) -> _Fit:
    """Give back its preset to every unknown that the measurements do not contradict there.

    The least certain ones come first. Otherwise noise would turn into rates, such as a link that is
    a thousand times as fast.
    """
    errors = _errors(best, {})
    doubtful = [name for name in best.found if name not in ("attention_share", "linear_share")]
    for name in sorted(doubtful, key=lambda name: -errors[name]):
        other = _solved(table, best.values, {*best.found} - {name})
        freedom = len(table.seconds) - len(best.found)
        if other.squares <= best.squares * (1 + _NEWS / freedom) + _EXACT * len(table.seconds):
            best = other
    return best


def _errors(fit: _Fit, presets: Mapping[str, float]) -> dict[str, float]:
    """Relative standard errors of the fitted values; what is farthest from its preset has none."""
    slopes = fit.slopes[:, [_ORDER.index(name) for name in fit.found]]
    scatter = fit.squares / (len(slopes) - len(fit.found))
    variances = scatter * np.diag(np.linalg.pinv(slopes.T @ slopes))
    return {
        name: math.sqrt(max(0.0, variance))
        for name, variance in zip(fit.found, variances.tolist(), strict=True)
        if name not in presets or abs(math.log(fit.values[name] / presets[name])) < _EDGE
    }


def _check(samples: Sequence[Measurement], model: StepCost) -> None:
    if len(samples) > MAX_SAMPLES:
        raise InputError("samples", len(samples), f"more than {MAX_SAMPLES:,}", "leave some out")
    lengths, count = set[int](), 0
    for number, sample in enumerate(samples):
        if sample.seconds <= 0:
            problem = "is not a time above 0"
            raise InputError(f"samples[{number}].seconds", sample.seconds, problem, "leave it out")
        for size, held in (load for microbatch in sample.microbatches for load in microbatch):
            if size < 1 or (held and min(held) < 1):
                problem = "length or CP size below 1"
                raise InputError(f"samples[{number}]", (size, *held), problem, "correct it")
            model.layout(size)
            lengths.update(held)
            count += len(held)
    if count > MAX_SEQUENCES:
        problem = f"more than {MAX_SEQUENCES:,} sequences"
        raise InputError("samples", count, problem, "leave some steps out")
    if len(lengths) < LEAST_LENGTHS:
        problem = f"fewer than {LEAST_LENGTHS} different lengths"
        raise InputError("samples", sorted(lengths), problem, "measure more lengths")
