"""The numbers of a run beside the same numbers of the run that it is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ringproof.rehearsal.running import Outcome

GRAD_NORM = "grad norm"
SMALL = 1e-12  # below which a difference is taken absolutely


@dataclass(frozen=True)
class Pair:
    """One number of two runs.

    Attributes:
        kind: ``loss``, ``norm`` or ``evaluation``.
        name: Name of the loss, or ``grad norm``.
        step: Training step, or index of the evaluation, from 1.
        value: Number of the run; ``None`` where it has none.
        reference: Number of the other run; ``None`` where it has none.
    """

    kind: str
    name: str
    step: int
    value: float | None
    reference: float | None

    @property
    def complete(self) -> bool:
        """Whether both runs have the number."""
        return self.value is not None and self.reference is not None

    @property
    def relative(self) -> float:
        """Relative difference; infinite where a number is missing or not finite."""
        if self.value is None or self.reference is None:
            return math.inf
        if not (math.isfinite(self.value) and math.isfinite(self.reference)):
            return math.inf
        difference = abs(self.value - self.reference)
        return difference if difference < SMALL else difference / max(abs(self.reference), SMALL)


def pairs(run: Outcome, reference: Outcome) -> Iterator[Pair]:
    """Yield the losses and the gradient norm of each step, and then the losses of evaluations."""
    for step in sorted(run.losses.keys() | reference.losses.keys()):
        yield from _named("loss", step, run.losses.get(step, {}), reference.losses.get(step, {}))
        norms = run.grad_norms.get(step), reference.grad_norms.get(step)
        if norms != (None, None):
            yield Pair("norm", GRAD_NORM, step, *norms)
    for index in range(max(len(run.evaluations), len(reference.evaluations))):
        held = [one.evaluations[index : index + 1] for one in (run, reference)]
        yield from _named("evaluation", index + 1, *(dict(*losses) for losses in held))


def _named(
    kind: str, step: int, mine: Mapping[str, float], other: Mapping[str, float]
) -> Iterator[Pair]:
    for name in sorted(mine.keys() | other.keys()):
        yield Pair(kind, name, step, mine.get(name), other.get(name))
