"""Verdicts on a rehearsed run: whether it starts, and whether it computes the right losses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType

from ringproof.cards.loading import find_cards, load_card
from ringproof.logs.diagnosis.symptoms import load_index
from ringproof.rehearsal.protocol.reports import Failure, RankReport
from ringproof.rehearsal.runs.outcome import Outcome

GRAD_NORM = "grad norm"
SMALL = 1e-12  # below which a difference is taken absolutely
NOT_EVALUATED = (
    " Evaluation losses are not compared: with --sft upstream averages the means of microbatches, "
    "which depend on packing and CP."
)
MEASURED_ITERATIONS = 5  # tolerances hold for so many steps and grow in proportion beyond
MOST_PITFALLS = 3
_FRAME = re.compile(r" in (\w+)\n(?: {4}(.*))?")
SKILL_OF_FEATURE: Mapping[str, str] = MappingProxyType(
    {"dynamic-cp": "dynamic-context-parallel", "a2a+p2p": "hierarchical-context-parallel"}
)


@dataclass(frozen=True)
class Tolerance:
    """How far two runs may differ and still count as equal.

    Attributes:
        loss: Largest relative difference of a loss in each of the first `MEASURED_ITERATIONS`
            steps.
        grad_norm: The same of a gradient norm.
        reason: Measurements behind these two numbers.
    """

    loss: float
    grad_norm: float
    reason: str

    def at(self, kind: str, step: int) -> float:
        """Return what is allowed in a step, since an optimizer amplifies the first roundings.

        Args:
            kind: ``loss``, ``norm`` or ``evaluation``.
        """
        growth = max(1.0, step / MEASURED_ITERATIONS)
        return growth * (self.grad_norm if kind == "norm" else self.loss)


TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "float32": Tolerance(
            2e-6,
            5e-6,
            "correct launches differed by at most 1e-6 in loss and 3e-7 in gradient norm over 5 "
            "steps, which are a few roundings of 6e-8, and by 2.9e-6 in gradient norm over 10; the "
            "smallest known defect of upstream differs by 5e-5 in gradient norm",
        ),
        "bfloat16": Tolerance(
            5e-4,
            1e-2,
            "correct launches differed by at most 1.1e-4 in loss and 1.9e-3 in gradient norm over "
            "5 steps and 5.7e-3 over 10, since bfloat16 rounds by 4e-3; smaller defects show in "
            "float32 only",
        ),
    }
)


@dataclass(frozen=True)
class KnownPitfall:
    """A pitfall of a skill's card that an error message matches."""

    skill: str
    id: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class StopReason:
    """Why a program did not run to its end.

    Attributes:
        kind: ``raised``, ``died``, ``hung`` or ``timeout``; ``import`` where upstream cannot be
            imported.
        rank: Rank that failed first; ``None`` where no rank was started.
        symbol: Symbol that no stand-in implements; empty for upstream's own errors.
        waiting: Collective and group that each unfinished rank waited in, by rank.
        pitfalls: Pitfalls of the cards that match the message, the best first.
    """

    kind: str
    rank: int | None
    message: str
    file: str = ""
    line: int | None = None
    symbol: str = ""
    iteration: int = 0
    waiting: Mapping[int, str] = field(default_factory=dict)
    pitfalls: tuple[KnownPitfall, ...] = ()


@dataclass(frozen=True)
class Difference:
    """One number of a run beside the same number of its reference.

    Attributes:
        kind: ``loss``, ``norm`` or ``evaluation``.
        step: Training step, or index of the evaluation, from 1.
        value: Number of the run; ``None`` where it has none.
        tolerance: Largest relative difference that counts as equal.
    """

    kind: str
    name: str
    step: int
    value: float | None
    reference: float | None
    tolerance: float

    @property
    def iteration(self) -> int:
        """Training step, from 1; 0 for an evaluation."""
        return 0 if self.kind == "evaluation" else self.step

    @property
    def complete(self) -> bool:
        """Whether both runs have the number."""
        return self.value is not None and self.reference is not None

    @property
    def relative(self) -> float:
        """Relative difference; infinite where a number is missing or not finite."""
        if self.value is None or self.reference is None:
            return math.inf
        if not math.isfinite(self.value - self.reference):
            return math.inf
        difference = abs(self.value - self.reference)
        return difference if difference < SMALL else difference / max(abs(self.reference), SMALL)

    @property
    def within(self) -> bool:
        """Whether the numbers count as equal."""
        return self.relative <= self.tolerance


def differences(run: Outcome, reference: Outcome, dtype: str = "float32") -> Iterator[Difference]:
    """Yield the losses and the gradient norm of each step, and then the losses of evaluations."""
    at, last = TOLERANCES[dtype].at, max(run.losses, default=0)
    nothing: Mapping[str, float] = {}
    for step in sorted(run.losses.keys() | reference.losses.keys()):
        both = run.losses.get(step, nothing), reference.losses.get(step, nothing)
        yield from _named("loss", step, *both, at("loss", step))
        norms = run.grad_norms.get(step), reference.grad_norms.get(step)
        if norms != (None, None):
            yield Difference("norm", GRAD_NORM, step, *norms, at("norm", step))
    evaluations = zip_longest(run.evaluations, reference.evaluations, fillvalue=nothing)
    for index, both in enumerate(evaluations, 1):
        yield from _named("evaluation", index, *both, at("evaluation", last))


def _named(
    kind: str, step: int, mine: Mapping[str, float], other: Mapping[str, float], allowed: float
) -> Iterator[Difference]:
    for name in sorted(mine.keys() | other.keys()):
        title = f"{name} of the evaluation" if kind == "evaluation" else name
        yield Difference(kind, title, step, mine.get(name), other.get(name), allowed)


@dataclass(frozen=True)
class Agreement:
    """Whether a run computes what its reference computes.

    Attributes:
        agrees: ``None`` where there is nothing to compare with.
    """

    agrees: bool | None
    reason: str
    differences: tuple[Difference, ...] = ()
    tolerance: Tolerance | None = None

    @property
    def largest_loss(self) -> Difference | None:
        """The loss with the largest relative difference."""
        return self._largest(norms=False)

    @property
    def largest_grad_norm(self) -> Difference | None:
        """The gradient norm with the largest relative difference."""
        return self._largest(norms=True)

    def _largest(self, *, norms: bool) -> Difference | None:
        found = (item for item in self.differences if (item.kind == "norm") is norms)
        return max(found, key=lambda item: item.relative, default=None)

    @property
    def first(self) -> Difference | None:
        """The first number that differs by more than the tolerance."""
        beyond = [item for item in self.differences if not item.within]
        return min(beyond, key=lambda item: item.iteration or math.inf, default=None)


def refusal_of(
    failure: Failure, reports: Sequence[RankReport], skills: Path | None = None, feature: str = ""
) -> StopReason:
    """Describe a failed run, with what the cards know about it; see `find_pitfalls`."""
    file, _, line = failure.place.rpartition(":")
    message = " ".join(failure.message.split())
    return StopReason(
        kind=failure.kind,
        rank=None if failure.kind == "import" else failure.rank,
        message=message,
        file=file,
        line=int(line) if line.isdigit() else None,
        symbol=failure.symbol,
        iteration=max((len(report.iterations) for report in reports), default=0),
        waiting=dict(failure.waiting),
        pitfalls=find_pitfalls(message, failure.traceback, skills, feature),
    )


def find_pitfalls(
    message: str, traceback: str, skills: Path | None, feature: str
) -> tuple[KnownPitfall, ...]:
    """Return the pitfalls of the cards that explain an error message, by the symptom index.

    Args:
        traceback: Functions in it, and its last source line, decide where messages are alike.
        feature: Context parallel feature of the launch; its skill comes first among equals.
    """
    error, _, said = message.partition(":")
    kind = "usage" if error == "SystemExit" else error.strip()
    frames = _FRAME.findall(traceback)
    code = frames[-1][1] if frames else ""
    symptom = load_index().find(kind, said.strip(), [name for name, _ in frames], code)
    if skills is None or symptom is None:
        return ()
    cards = {skill: load_card(path) for skill, path in find_cards(skills).items()}
    found = [
        KnownPitfall(skill, pitfall.id, pitfall.cause, pitfall.remedy)
        for name in symptom.statements
        for skill, card in cards.items()
        for pitfall in card.pitfalls
        if name == f"{skill}/{pitfall.id}"
    ]
    found.sort(key=lambda one: one.skill != SKILL_OF_FEATURE.get(feature, ""))
    return tuple(found[:MOST_PITFALLS])


def compare(
    outcome: Outcome, reference: Outcome, dtype: str, *, evaluated: bool = True
) -> Agreement:
    """Compare the losses and gradient norms of a run with those of its reference.

    Args:
        evaluated: Whether losses of evaluations count. They do not where upstream averages the
            means of microbatches, which depend on how sequences are packed.
    """
    found = (item for item in differences(outcome, reference, dtype) if item.complete)
    compared = tuple(item for item in found if evaluated or item.iteration)
    agreement = Agreement(False, "", compared, TOLERANCES[dtype])
    first, largest = agreement.first, agreement.largest_loss
    if largest is None:
        reason = "Neither run has a loss in common with the other, so nothing was compared."
        return replace(agreement, reason=reason)
    if first is None:
        reason = (
            f"{len(outcome.losses)} steps agree: losses differ by at most "
            f"{largest.relative:.2g} (tolerance {largest.tolerance:.2g})."
            f"{'' if evaluated else NOT_EVALUATED}"
        )
        return replace(agreement, agrees=True, reason=reason)
    where = f"in step {first.iteration}" if first.iteration else "in the evaluation"
    reason = (
        f"The {first.name} differs first {where}: {first.value:.9g} against "
        f"{first.reference:.9g}, relative {first.relative:.2g} (tolerance {first.tolerance:.2g})."
    )
    return replace(agreement, reason=reason)
