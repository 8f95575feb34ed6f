"""Fit the rates of a machine to measurements, by non-negative least squares on relative errors.

A measurement is the time of one sequence on one group, or of a whole step of a trainer with the
plan it followed. A rate keeps its preset where the measurements cannot tell it apart from what was
found before (CP size 1 alone says nothing of links), and where they do not contradict the preset.
Which part of a ring is exposed, and which group of a microbatch is the longest, depends on the
rates, so the fit is repeated with the rates it found until that no longer changes, from several
starts, and the best is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
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
    Sample,
    Step,
    measurement_from_json,
    measurement_json,
)
from ringproof.reference.planning.timing import Prices, StepCost

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
"""Fields of `Hardware`, in the order of `Prices`, which are the rates that are fitted."""
ATTENTION, LINEAR, SHORT, LAUNCH, NEAR, FAR, NEAR_MESSAGE, FAR_MESSAGE = range(len(UNKNOWNS))
REST = len(UNKNOWNS)
"""The last rate: seconds of a step that no plan changes. It is not a field of `Hardware`."""
RATES = len(UNKNOWNS) + 1
ORDER = (ATTENTION, LINEAR, SHORT, REST, LAUNCH, NEAR, FAR, NEAR_MESSAGE, FAR_MESSAGE)
"""Order in which unknowns are taken. One that depends linearly on those before keeps its value."""
_DIVIDES = np.isin(np.arange(RATES), (ATTENTION, LINEAR, NEAR, FAR))
_LINKS = np.isin(np.arange(RATES), (NEAR, FAR))


def rates_of(machine: Hardware) -> FloatArray:
    """Seconds per operation, byte, message and layer, shape ``(RATES,)``."""
    return np.array([*astuple(Prices.of(machine))[1:], 0.0])


def machine_of(rates: FloatArray, machine: Hardware) -> Hardware:
    """The machine with these rates; peak and node as they were."""
    values = rates.astype(float).tolist()
    peak = machine.peak_flops_per_second
    for index in (ATTENTION, LINEAR):
        values[index] = 1 / (peak * values[index])
    for index in (NEAR, FAR):
        values[index] = 1 / values[index]
    values[SHORT] = float(rates[SHORT] / rates[ATTENTION])
    return changed(machine, dict(zip(UNKNOWNS, values, strict=False)))


def changed(machine: Hardware, values: Mapping[str, Any]) -> Hardware:
    """The machine with other values.

    Raises:
        InputError: A value that is impossible, such as a share above 1.
    """
    remedy = "correct the measurements, or the peak of the hardware"
    return built(Hardware, {**vars(machine), **values}, "hardware", remedy)


@dataclass(frozen=True)
class Table:
    """Measurements as arrays. A group is a load; loads and microbatches are numbered in order.

    Attributes:
        by_size: Per group size its loads, and the load and length of each of its sequences.
        microbatch_of, measurement_of: Microbatch of each load, measurement of each microbatch.
        whole, rest: Per measurement, 1 unless only attention was timed; 1 for a whole step.
    """

    by_size: tuple[tuple[int, IntArray, IntArray, IntArray], ...]
    microbatch_of: IntArray
    measurement_of: IntArray
    whole: FloatArray
    rest: FloatArray


def make_table(measurements: Sequence[Measurement]) -> Table:
    """Flatten measurements; a microbatch without any sequence gets an empty load."""
    loads: dict[int, list[tuple[int, int]]] = {}
    places: dict[int, list[int]] = {}
    microbatch_of: list[int] = []
    measurement_of: list[int] = []
    for place, item in enumerate(measurements):
        for microbatch in item.microbatches:
            for size, lengths in microbatch or ((1, ()),):
                load = len(microbatch_of)
                places.setdefault(size, []).append(load)
                loads.setdefault(size, []).extend((load, length) for length in lengths)
                microbatch_of.append(len(measurement_of))
            measurement_of.append(place)
    only = [isinstance(item, Sample) and item.attention_only for item in measurements]
    by_size = []
    for size in sorted(places):
        owner, lengths = np.array(loads[size], np.int64).reshape(-1, 2).T
        by_size.append((size, np.array(places[size], np.int64), owner, lengths))
    return Table(
        tuple(by_size),
        np.array(microbatch_of, np.int64),
        np.array(measurement_of, np.int64),
        1.0 - np.array(only, np.float64),
        np.array([isinstance(item, Step) for item in measurements], np.float64),
    )


def counts(table: Table, model: StepCost, rates: FloatArray) -> FloatArray:
    """How often each measurement spends each rate, shape ``(measurements, RATES)``.

    The cost model is evaluated with a unit vector as the price of each unit of work.
    """

    def longer(one: FloatArray, other: FloatArray) -> FloatArray:
        return np.where(rates @ one >= rates @ other, one, other)

    units = Prices(longer, *np.eye(RATES)[:REST, :, None])
    loads = np.zeros((len(table.microbatch_of), RATES))
    for size, places, owner, lengths in table.by_size:
        np.add.at(loads, owner, model.sequences(lengths, size, units).T)
        loads[places] += model.group(size, units)[:, 0]
    order = np.lexsort((loads @ rates, table.microbatch_of))
    last = np.flatnonzero(np.diff(table.microbatch_of[order], append=-1))
    microbatches = loads[order[last]] + model.microbatch(units)[:, 0]  # the longest group of each
    found = np.zeros((len(table.whole), RATES))
    np.add.at(found, table.measurement_of, microbatches)
    found[:, [LINEAR, LAUNCH]] *= table.whole[:, None]
    found[:, REST] = table.rest
    return found


_RESIDUAL = 1e-3
"""A column is independent when this part of it is not a sum of the columns before it."""


def independent(matrix: FloatArray) -> tuple[int, ...]:
    """Columns, from the left, that are no linear combination of those taken before."""
    taken: list[int] = []
    for index, column in enumerate(matrix.T):
        basis = np.linalg.qr(matrix[:, taken])[0]
        rest = column - basis @ (basis.T @ column)
        if float(np.linalg.norm(rest)) > _RESIDUAL * float(np.linalg.norm(column)):
            taken.append(index)
    return tuple(taken)


_ROUNDING = 1e-12
"""A column that explains no more than this part of the target is taken to explain nothing."""


def nonnegative(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """Minimise ``|matrix @ x - target|`` over ``x >= 0``, with columns scaled to length 1.

    The columns of ``matrix``, shape ``(samples, unknowns)``, are independent.

    Raises:
        InputError: scipy is not installed.
    """
    try:
        from scipy.optimize import nnls
    except ImportError as error:
        remedy = "install ringproof[plan], or scipy alone"
        raise InputError("calibrate", None, "needs the package scipy", remedy) from error
    norms = np.linalg.norm(matrix, axis=0)
    solution: FloatArray = nnls(matrix / norms, target)[0]
    rounding = _ROUNDING * float(np.linalg.norm(target))
    return np.where(solution > rounding, solution, 0.0) / norms


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
        return changed(machine, {**self.fitted, "name": f"{machine.name}-calibrated"})

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


LEAST_LENGTHS = 3
"""Fewer lengths do not tell squares, multiples and constants apart."""
_ROUNDS = 30
"""Rounds after which a fit that still changes is given up; its best round counts."""
_STARTS = (1.0, 0.03, 0.3, 3.0, 30.0)
"""Times the preset's seconds per byte: from links that hide everything to links that hide none."""
_SAME = 1e-9
"""Relative change of the rates below which a fit has settled."""
MAX_SAMPLES, MAX_SEQUENCES = 20_000, 200_000
"""Limits on the measurements, which are fitted in about a minute."""
_NEWS = 4.0
"""Two standard errors, squared. A smaller improvement does not show that an unknown differs from
its preset."""
_EXACT = 1e-18
"""Squared relative error that rounding explains."""


def fit(samples: Sequence[Measurement], model: StepCost) -> Calibration:
    """Fit what the measurements tell.

    Args:
        samples: Measurements of one model on one machine.
        model: The model and how it ran. Its machine is where the fit starts; its peak, and every
            rate that is not fitted, are kept.

    Raises:
        InputError: Too few measurements, too few different lengths, or times that do not grow with
            the square of the length or exceed the machine's peak.
    """
    _check(samples, model)
    machine = model.machine
    seconds = np.array([sample.seconds for sample in samples])
    task = _Task(make_table(samples), seconds, model, rates_of(machine))
    tries = [
        _settled(task, task.start * np.where(_LINKS, factor, 1.0), frozenset(ORDER))
        for factor in _STARTS
    ]
    best = _without_doubtful(task, min(tries, key=lambda item: item.squares))
    fitted = machine_of(_bounded(best.rates, best.found, task.start), machine)
    names = [UNKNOWNS[index] for index in best.found if index != REST]
    rates = np.append(rates_of(fitted)[:REST], best.rates[REST])
    errors = _errors(task, replace(best, rates=rates))
    predictions = counts(task.table, model, rates) @ rates
    return Calibration(
        machine.peak_flops_per_second,
        {name: float(getattr(fitted, name)) for name in names},
        {UNKNOWNS[index]: error for index, error in errors.items() if index != REST},
        tuple(name for name in UNKNOWNS if name not in names),
        float(rates[REST]),
        tuple(map(Row, samples, predictions.tolist())),
    )


@dataclass(frozen=True)
class _Task:
    """Measurements, what they took, and the model and the rates to start from."""

    table: Table
    seconds: FloatArray
    model: StepCost
    start: FloatArray

    def scaled(self, rates: FloatArray) -> FloatArray:
        """Counts over measured seconds: times the right rates, they are 1."""
        return counts(self.table, self.model, rates) / self.seconds[:, None]


@dataclass(frozen=True)
class _Fit:
    """Sum of the squared relative errors, which unknowns were fitted, and all rates."""

    squares: float
    found: tuple[int, ...]
    rates: FloatArray


def _settled(task: _Task, rates: FloatArray, allowed: frozenset[int]) -> _Fit:
    """Fit until what is exposed no longer changes; the best of all rounds."""
    best: _Fit | None = None
    for _ in range(_ROUNDS):
        before = rates
        found, rates = _solved(task.scaled(before), task.start, allowed)
        squares = float(np.sum((task.scaled(rates) @ rates - 1) ** 2))
        if best is None or squares < best.squares:
            best = _Fit(squares, found, rates)
        if np.allclose(rates, before, rtol=_SAME, atol=0):
            break
    assert best is not None
    return best


def _without_doubtful(task: _Task, best: _Fit) -> _Fit:
    """Give back its preset to every unknown that the measurements do not contradict there.

    The least certain ones come first. Otherwise noise would turn into rates, such as a link that is
    a thousand times as fast.
    """
    errors = _errors(task, best)
    doubtful = [index for index in best.found if index not in (ATTENTION, LINEAR)]
    for index in sorted(doubtful, key=lambda item: -errors.get(item, math.inf)):
        other = _settled(task, best.rates, frozenset(best.found) - {index})
        freedom = len(task.seconds) - len(best.found)
        if other.squares <= best.squares * (1 + _NEWS / freedom) + _EXACT * len(task.seconds):
            best = other
    return best


def _solved(
    scaled: FloatArray, start: FloatArray, allowed: frozenset[int]
) -> tuple[tuple[int, ...], FloatArray]:
    """Which of the allowed unknowns the measurements determine, and all rates.

    Short rows keep their number, not their rate: that follows the rate of attention.
    """
    order = [index for index in ORDER if index in allowed]
    found = tuple(order[place] for place in independent(scaled[:, order]))
    if ATTENTION not in found:
        problem = "lengths do not tell attention from the rest"
        raise InputError("samples", None, problem, "measure more different lengths")
    if len(scaled) <= len(found):
        problem = f"{len(found)} unknowns need at least {len(found) + 1} samples"
        raise InputError("samples", len(scaled), problem, "measure more lengths and CP sizes")
    half_rows = 0.0 if SHORT in found else start[SHORT] / start[ATTENTION]
    columns = scaled.copy()
    columns[:, ATTENTION] += half_rows * scaled[:, SHORT]
    others = [index for index in ORDER if index not in (*found, SHORT)]
    target = np.ones(len(scaled)) - columns[:, others] @ start[others]
    rates = start.copy()
    rates[list(found)] = nonnegative(columns[:, list(found)], target)
    if SHORT not in found:
        rates[SHORT] = half_rows * rates[ATTENTION]
    return found, rates


def _errors(task: _Task, fit: _Fit) -> dict[int, float]:
    """Relative standard errors of the fitted fields; what was fitted as 0 has none."""
    scaled, rates = task.scaled(fit.rates), fit.rates
    used = [index for index in fit.found if rates[index] > 0]
    columns = scaled[:, used] * rates[used]
    scatter = float(np.sum((scaled @ rates - 1) ** 2)) / (len(scaled) - len(fit.found))
    variances = dict(zip(used, scatter * np.diag(np.linalg.pinv(columns.T @ columns)), strict=True))
    if SHORT in variances:  # the field is a ratio of two rates
        variances[SHORT] += variances.get(ATTENTION, 0.0)
    return {index: math.sqrt(max(0.0, variance)) for index, variance in variances.items()}


def _bounded(rates: FloatArray, found: Iterable[int], start: FloatArray) -> FloatArray:
    """Rates of a machine: what divides must not be 0, and what was fitted as 0 is said."""
    for index in (ATTENTION, LINEAR):
        if index in found and rates[index] <= 0:
            name = UNKNOWNS[index]
            grows = "square of the length" if index == ATTENTION else "length"
            problem = f"times do not grow with the {grows}, so there is no {name}"
            raise InputError("samples", None, problem, "measure longer sequences, more often")
    # A link whose traffic never shows is faster than can be told: a thousand times the preset.
    return np.where(rates > 0, rates, np.where(_DIVIDES, start / 1000, 0.0))


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
