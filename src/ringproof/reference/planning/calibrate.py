"""Rates of a machine from measurements: non-negative least squares on relative errors.

A measurement is the time of one sequence on one group, or of a whole step of a trainer with the
plan it followed. What the measurements cannot tell apart from what was found before (with CP size
1 alone, nothing is known of links; and short rows cost like other work), and what they do not
contradict at its preset, keeps that and is reported as kept. Which part of a ring is exposed, and
which group of a microbatch is the longest, depends on the rates, so the fit is repeated with the
rates it found until that no longer changes, from several starts, and the best is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ringproof.errors import InputError
from ringproof.reference.planning.basis import (
    ATTENTION,
    LINEAR,
    ORDER,
    REST,
    SHORT,
    UNKNOWNS,
    Table,
    counts,
    machine_of,
    make_table,
    rates_of,
)
from ringproof.reference.planning.calibration import Calibration, Row
from ringproof.reference.planning.costs import FloatArray
from ringproof.reference.planning.hardware import Hardware
from ringproof.reference.planning.leastsquares import independent, nonnegative
from ringproof.reference.planning.samples import Measurement
from ringproof.reference.planning.shapes import ModelShape
from ringproof.reference.planning.timing import StepCost

LEAST_LENGTHS = 3
_ROUNDS = 30
_STARTS = (1.0, 0.03, 0.3, 3.0, 30.0)
"""Times the preset's seconds per byte: from links that hide everything to links that hide none."""
_SAME = 1e-9
MAX_SAMPLES, MAX_SEQUENCES = 20_000, 200_000
"""What is fitted in about a minute."""
_NEWS = 4.0
"""Two standard errors, squared: less is no news of an unknown."""
_EXACT = 1e-18
"""Squared relative error that is rounding."""


def fit(
    samples: Sequence[Measurement],
    shape: ModelShape,
    machine: Hardware,
    *,
    model: StepCost | None = None,
) -> Calibration:
    """Fit what the measurements tell.

    Args:
        samples: Of one model on one machine.
        shape: The model.
        machine: Where the fit starts, and what keeps what is not fitted; its peak is taken as is.
        model: Communication type, tensor parallel size and recomputation of the measurement;
            ring, 1 and none where not given. Its shape and machine are not used.

    Raises:
        InputError: Too few measurements, too few different lengths, or times that do not grow with
            the square of the length or exceed the machine's peak.
    """
    setting = replace(model or StepCost(shape=shape, machine=machine), shape=shape, machine=machine)
    _check(samples, setting)
    seconds = np.array([sample.seconds for sample in samples])
    task = _Task(make_table(samples), seconds, setting, rates_of(machine))
    tries = [_settled(task, _guess(task.start, factor), frozenset(ORDER)) for factor in _STARTS]
    best = _without_doubtful(task, min(tries, key=lambda item: item.squares))
    fitted = machine_of(_bounded(best.rates, best.found, task.start), machine)
    names = tuple(UNKNOWNS[index] for index in best.found if index != REST)
    rates = _with_rest(rates_of(fitted), float(best.rates[REST]))
    errors = _errors(task, replace(best, rates=rates))
    predictions = counts(task.table, setting, rates) @ rates
    return Calibration(
        machine.peak_flops_per_second,
        tuple((name, float(getattr(fitted, name))) for name in names),
        tuple((UNKNOWNS[index], error) for index, error in errors.items() if index != REST),
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


def _guess(start: FloatArray, factor: float) -> FloatArray:
    return start * np.where(_links(), factor, 1.0)


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

    The least certain ones first. Else noise would turn into rates: a link a thousand times as fast.
    """
    errors = _errors(task, best)
    doubtful = [index for index in best.found if index not in (ATTENTION, LINEAR)]
    for index in sorted(doubtful, key=lambda item: -errors.get(item, math.inf)):
        other = _settled(task, best.rates, frozenset(best.found) - {index})
        freedom = len(task.seconds) - len(best.found)
        if other.squares <= best.squares * (1 + _NEWS / freedom) + _EXACT * len(task.seconds):
            best = other
    return best


def predicted(sample: Measurement, model: StepCost, rest_seconds: float = 0.0) -> float:
    """What the model says of a measurement; of a step, with the seconds that no plan changes."""
    rates = _with_rest(rates_of(model.machine), rest_seconds)
    return float((counts(make_table([sample]), model, rates) @ rates)[0])


def _with_rest(rates: FloatArray, rest_seconds: float) -> FloatArray:
    """The rates with another time of a step beside its microbatches."""
    return np.append(rates[:REST], rest_seconds)


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
    return np.where(rates > 0, rates, np.where(_divides(), start / 1000, 0.0))


def _divides() -> npt.NDArray[np.bool_]:
    return np.array([*(name.endswith(("share", "bytes_per_second")) for name in UNKNOWNS), False])


def _links() -> npt.NDArray[np.bool_]:
    return np.array([*(name.endswith("bytes_per_second") for name in UNKNOWNS), False])


def _check(samples: Sequence[Measurement], model: StepCost) -> None:
    if len(samples) > MAX_SAMPLES:
        raise InputError("samples", len(samples), f"more than {MAX_SAMPLES:,}", "leave some out")
    lengths, count = set[int](), 0
    for number, sample in enumerate(samples):
        if not (math.isfinite(sample.seconds) and sample.seconds > 0):
            problem = "is no time above 0"
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
