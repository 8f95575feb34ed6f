"""Rates of a machine from measurements: non-negative least squares on relative errors.

A measurement is the time of one sequence on one group. What the measurements cannot tell apart
from what was found before (with CP size 1 alone, nothing is known of links; and short rows cost
like other work) keeps its preset value and is reported as kept. Which part of a ring is exposed
depends on the rates, so the fit is repeated with the rates it found until that no longer changes,
from several starts, and the best is taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ringproof.errors import InputError
from ringproof.reference.planning.basis import (
    ATTENTION,
    LINEAR,
    UNKNOWNS,
    Sample,
    counts,
    machine_of,
    rates_of,
)
from ringproof.reference.planning.costs import FloatArray
from ringproof.reference.planning.hardware import Hardware
from ringproof.reference.planning.leastsquares import independent, nonnegative
from ringproof.reference.planning.shapes import ModelShape
from ringproof.reference.planning.timing import StepCost

LEAST_LENGTHS = 3
_ROUNDS = 30
_STARTS = (1.0, 0.03, 0.3, 3.0, 30.0)
"""Times the preset's seconds per byte: from links that hide everything to links that hide none."""
_SAME = 1e-9
MAX_SAMPLES = 100_000


@dataclass(frozen=True)
class Row:
    """A measurement, and what the fitted model says."""

    sample: Sample
    predicted_seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted_seconds / self.sample.seconds - 1


@dataclass(frozen=True)
class Calibration:
    """What was found.

    Attributes:
        fitted: Fields of `Hardware` and their new values.
        kept: Fields that the samples say nothing about.
        rows: Measured against predicted, in the order of the samples.
    """

    fitted: tuple[tuple[str, float], ...]
    kept: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def mean_absolute_error(self) -> float:
        """Of the predictions, relative to what was measured."""
        return sum(abs(row.error) for row in self.rows) / len(self.rows)

    def apply(self, machine: Hardware) -> Hardware:
        """The machine with what was found in place of its own values."""
        values: dict[str, Any] = dict(self.fitted)
        return replace(machine, name=f"{machine.name}-calibrated", **values)

    def as_json(self) -> dict[str, Any]:
        """Plain data; `calibration_from_json` reads it back."""
        return {
            "version": 1,
            "fitted": dict(self.fitted),
            "kept": list(self.kept),
            "mean_absolute_error": self.mean_absolute_error,
            "samples": [
                {**sample_json(row.sample), "predicted_seconds": row.predicted_seconds}
                for row in self.rows
            ],
        }

    def table(self) -> str:
        """Measured against predicted, one line per sample."""
        lines = [f"{'length':>9} {'cp':>4} {'measured ms':>12} {'predicted ms':>12} {'error':>7}"]
        for row in self.rows:
            measured, predicted = 1e3 * row.sample.seconds, 1e3 * row.predicted_seconds
            lines.append(
                f"{row.sample.length:>9} {row.sample.cp_size:>4} {measured:>12.3f} "
                f"{predicted:>12.3f} {row.error:>+7.1%}"
            )
        return "\n".join(lines)


def fit(
    samples: Sequence[Sample],
    shape: ModelShape,
    machine: Hardware,
    *,
    model: StepCost | None = None,
) -> Calibration:
    """Fit what the samples tell.

    Args:
        samples: Measurements of one model on one machine.
        shape: The model.
        machine: Where the fit starts, and what keeps what is not fitted; its peak is taken as is.
        model: Communication type, tensor parallel size and recomputation of the measurement;
            ring, 1 and none where not given. Its shape and machine are not used.

    Raises:
        InputError: Too few samples, too few different lengths, or times that do not grow with
            the square of the length or exceed the machine's peak.
    """
    setting = replace(model or StepCost(shape=shape, machine=machine), shape=shape, machine=machine)
    _check(samples, setting)
    start = rates_of(machine)
    tries = [_settled(samples, setting, start, factor) for factor in _STARTS]
    _, found, rates = min(tries, key=lambda item: item[0])
    fitted = machine_of(_bounded(rates, found, start), machine)
    names = tuple(UNKNOWNS[index] for index in found)
    predictor = replace(setting, machine=fitted)
    return Calibration(
        tuple((name, float(getattr(fitted, name))) for name in names),
        tuple(name for name in UNKNOWNS if name not in names),
        tuple(Row(sample, predicted(sample, predictor)) for sample in samples),
    )


def _settled(
    samples: Sequence[Sample], model: StepCost, start: FloatArray, factor: float
) -> tuple[float, tuple[int, ...], FloatArray]:
    """Fit until what is exposed no longer changes.

    Returns:
        Root of the mean squared relative error, the unknowns found, and the best rates.
    """
    rates = start * np.where(_links(), factor, 1.0)
    best: tuple[float, tuple[int, ...], FloatArray] | None = None
    for _ in range(_ROUNDS):
        before = rates
        matrix = np.stack([counts(sample, model, before) for sample in samples])
        found, rates = _solved(matrix, samples, start)
        after = np.stack([counts(sample, model, rates) for sample in samples])
        ratios = after @ rates / np.array([sample.seconds for sample in samples])
        error = float(np.sqrt(np.mean((ratios - 1) ** 2)))
        if best is None or error < best[0]:
            best = error, found, rates
        if np.allclose(rates, before, rtol=_SAME, atol=0):
            break
    assert best is not None
    return best


def predicted(sample: Sample, model: StepCost) -> float:
    """What the model says of a sample."""
    rates = rates_of(model.machine)
    return float(counts(sample, model, rates) @ rates)


def _solved(
    matrix: FloatArray, samples: Sequence[Sample], start: FloatArray
) -> tuple[tuple[int, ...], FloatArray]:
    """Which unknowns the samples determine, and all rates."""
    weights = 1 / np.array([sample.seconds for sample in samples])
    scaled = matrix * weights[:, None]
    found = independent(scaled)
    if ATTENTION not in found:
        problem = "lengths do not tell attention from the rest"
        raise InputError("samples", None, problem, "measure more different lengths")
    if len(samples) <= len(found):
        problem = f"{len(found)} unknowns need at least {len(found) + 1} samples"
        raise InputError("samples", len(samples), problem, "measure more lengths and CP sizes")
    others = [index for index in range(len(UNKNOWNS)) if index not in found]
    target = np.ones(len(samples)) - scaled[:, others] @ start[others]
    rates = start.copy()
    rates[list(found)] = nonnegative(scaled[:, list(found)], target)
    return found, rates


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
    return np.array([name.endswith(("share", "bytes_per_second")) for name in UNKNOWNS])


def _links() -> npt.NDArray[np.bool_]:
    return np.array([name.endswith("bytes_per_second") for name in UNKNOWNS])


def _check(samples: Sequence[Sample], model: StepCost) -> None:
    if len(samples) > MAX_SAMPLES:
        raise InputError("samples", len(samples), f"more than {MAX_SAMPLES:,}", "average them")
    for number, sample in enumerate(samples):
        if sample.length < 1 or sample.cp_size < 1:
            raise InputError(
                f"samples[{number}]", sample, "length or CP size below 1", "correct it"
            )
        if not (math.isfinite(sample.seconds) and sample.seconds > 0):
            problem = "is no time above 0"
            raise InputError(f"samples[{number}].seconds", sample.seconds, problem, "leave it out")
        model.layout(sample.cp_size)
    lengths = {sample.length for sample in samples}
    if len(lengths) < LEAST_LENGTHS:
        problem = f"fewer than {LEAST_LENGTHS} different lengths"
        raise InputError("samples", sorted(lengths), problem, "measure more lengths")


def parse_samples(text: str) -> tuple[Sample, ...]:
    """Samples from JSON lines: ``{"length": 8192, "cp_size": 2, "seconds": 0.012}``.

    Raises:
        InputError: A line that is no sample; names it.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            found.append(_parsed(line, f"samples:{number}"))
    return tuple(found)


def _parsed(line: str, where: str) -> Sample:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(where, line, "is no JSON", "write one object per line") from None
    if not isinstance(data, dict):
        raise InputError(where, line, "is no JSON object", "write one object per line")
    for name in ("length", "cp_size"):
        if not isinstance(data.get(name), int) or isinstance(data[name], bool):
            raise InputError(f"{where}: {name}", data.get(name), "is no whole number", "correct it")
    seconds = data.get("seconds")
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise InputError(f"{where}: seconds", seconds, "is no number", "correct it")
    only = data.get("attention_only", False)
    if not isinstance(only, bool):
        raise InputError(
            f"{where}: attention_only", only, "is neither true nor false", "correct it"
        )
    return Sample(data["length"], data["cp_size"], float(seconds), only)


def sample_json(sample: Sample) -> dict[str, Any]:
    """One sample as plain data, as `parse_samples` reads it."""
    data = {"length": sample.length, "cp_size": sample.cp_size, "seconds": sample.seconds}
    return {**data, "attention_only": True} if sample.attention_only else data


def calibration_from_json(data: Any) -> Calibration:
    """What `Calibration.as_json` wrote.

    Raises:
        InputError: Something else.
    """
    try:
        rows = tuple(
            Row(_parsed(json.dumps(item), "samples"), float(item["predicted_seconds"]))
            for item in data["samples"]
        )
        fitted = tuple((str(name), float(value)) for name, value in data["fitted"].items())
        kept = tuple(str(name) for name in data["kept"])
        version = data["version"]
    except InputError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError):
        raise InputError("calibration", None, "is no calibration", "fit it anew") from None
    if version != 1 or not rows or {*kept, *dict(fitted)} != set(UNKNOWNS):
        raise InputError("calibration", version, "is no calibration of version 1", "fit it anew")
    return Calibration(fitted, kept, rows)
