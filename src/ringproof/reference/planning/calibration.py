"""What calibration found of a machine, and how well it explains the measurements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ringproof.errors import InputError
from ringproof.reference.planning.basis import UNKNOWNS
from ringproof.reference.planning.hardware import Hardware
from ringproof.reference.planning.samples import (
    Measurement,
    measurement_from_json,
    measurement_json,
)


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
        peak_flops_per_second: Of the hardware the fit started from; shares are shares of it.
        fitted: Fields of `Hardware` and their new values.
        errors: Standard error of each, relative to it, as far as the scatter of the measurements
            tells; none for what was fitted at the edge of what is possible.
        kept: Fields of which the measurements say nothing that contradicts the preset.
        rest_seconds: What a step takes beside its microbatches (gradient reduction, optimiser);
            0 where no step was measured.
        rows: Measured against predicted, in the order of the measurements.
    """

    peak_flops_per_second: float
    fitted: tuple[tuple[str, float], ...]
    errors: tuple[tuple[str, float], ...]
    kept: tuple[str, ...]
    rest_seconds: float
    rows: tuple[Row, ...]

    @property
    def mean_absolute_error(self) -> float:
        """Of the predictions, relative to what was measured."""
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
        values: dict[str, Any] = dict(self.fitted)
        return replace(machine, name=f"{machine.name}-calibrated", **values)

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


def calibration_from_json(data: Any) -> Calibration:
    """What `Calibration.as_json` wrote.

    Raises:
        InputError: Something else.
    """
    try:
        rows = tuple(
            Row(measurement_from_json(item, "samples"), float(item["predicted_seconds"]))
            for item in data["samples"]
        )
        fitted, errors = (
            tuple((str(name), float(value)) for name, value in data[key].items())
            for key in ("fitted", "errors")
        )
        kept = tuple(str(name) for name in data["kept"])
        peak, rest = float(data["peak_flops_per_second"]), float(data["rest_seconds"])
        version = data["version"]
    except InputError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        raise InputError("calibration", None, "is no calibration", "fit it anew") from None
    if version != 1 or not rows or {*kept, *dict(fitted)} != set(UNKNOWNS):
        raise InputError("calibration", version, "is no calibration of version 1", "fit it anew")
    return Calibration(peak, fitted, errors, kept, rest, rows)
