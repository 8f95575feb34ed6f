"""Whether a rehearsed run computes the losses and gradient norms of its reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import zip_longest
from types import MappingProxyType

from ringproof.rehearsal.runs.outcome import Outcome

GRAD_NORM = "grad norm"
SMALL = 1e-12  # below which a difference is taken absolutely
NOT_EVALUATED = (
    " Evaluation losses are not compared: with --sft upstream averages the means of microbatches, "
    "which depend on packing and CP."
)
NO_STEPS = "No training step was logged on any rank, so nothing is known of it."
INCOMPARABLE = "It uses no context parallelism, so there is nothing to compare with."
MEASURED_ITERATIONS = 5  # tolerances hold for so many steps and grow in proportion beyond


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
    def moment(self) -> int:
        """Training step, or the negative index of an evaluation, as traces number them."""
        return -self.step if self.kind == "evaluation" else self.step

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
    steps = run.losses.keys() | reference.losses.keys()
    for step in sorted(steps or run.grad_norms.keys() | reference.grad_norms.keys()):
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
        other_tokens: Whether the two trained on different tokens, so that their losses do not say
            which of them is right.
    """

    agrees: bool | None
    reason: str
    differences: tuple[Difference, ...] = ()
    tolerance: Tolerance | None = None
    other_tokens: bool = False

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


def compare(
    outcome: Outcome, reference: Outcome, dtype: str, *, evaluated: bool = True,
    by_norms: bool = False,
) -> Agreement:  # fmt: skip
    """Compare the losses and gradient norms of a run with those of its reference.

    Args:
        evaluated: Whether losses of evaluations count. They do not where upstream averages the
            means of microbatches, which depend on how sequences are packed.
        by_norms: Whether gradient norms decide alone, for programs whose losses are not seen.

    Returns:
        No agreement where only one of the two logged a loss of a training step. Gradient norms,
        evaluations and tokens that only one has are named and decide nothing.
    """
    every = differences(outcome, reference, dtype)
    found = tuple(item for item in every if evaluated or item.iteration)
    compared = tuple(item for item in found if item.complete)
    agreement = Agreement(False, "", compared, TOLERANCES[dtype])
    first = agreement.first
    largest = agreement.largest_grad_norm if by_norms else agreement.largest_loss
    parted = _parted_tokens(outcome, reference)
    if parted:
        return replace(agreement, reason=parted, other_tokens=True)
    if largest is None:
        what = "gradient norm" if by_norms else "loss"
        reason = f"Neither run has a {what} in common with the other, so nothing was compared."
        return replace(agreement, reason=reason)
    if first is not None:
        where = f"in step {first.iteration}" if first.iteration else "in the evaluation"
        reason = (
            f"The {first.name} differs first {where}: {first.value:.9g} against "
            f"{first.reference:.9g}, relative {first.relative:.2g} "
            f"(tolerance {first.tolerance:.2g})."
        )
        return replace(agreement, reason=reason)
    if by_norms:
        return _by_norms(agreement, outcome, reference, largest)
    lone = _lone_loss(found, outcome.losses.keys(), reference.losses.keys())
    if lone:
        return replace(agreement, reason=lone)
    steps = {item.step for item in compared if item.kind == "loss"}
    reason = (
        f"{len(steps)} steps agree: losses differ by at most {largest.relative:.2g} "
        f"(tolerance {largest.tolerance:.2g}).{'' if evaluated else NOT_EVALUATED}"
        f"{_unpaired(found)}{_uncounted(outcome.tokens.keys(), reference.tokens.keys(), steps)}"
    )
    return replace(agreement, agrees=True, reason=reason)


def _by_norms(
    agreement: Agreement, outcome: Outcome, reference: Outcome, largest: Difference
) -> Agreement:
    """Return the verdict on two runs without losses, none of whose gradient norms differ."""
    steps = len(outcome.grad_norms)
    if outcome.grad_norms.keys() != reference.grad_norms.keys():
        logged = f"{steps} and {len(reference.grad_norms)} steps"
        return replace(agreement, reason=f"Not every step was compared: the two took {logged}.")
    reason = (
        f"{steps} steps agree: gradient norms differ by at most {largest.relative:.2g} (tolerance "
        f"{largest.tolerance:.2g}). The models got no labels, so no loss was compared."
    )
    return replace(agreement, agrees=True, reason=reason)


def _lone_loss(found: Sequence[Difference], mine: Set[int], other: Set[int]) -> str:
    """Say which losses only one of two runs logged; empty where both logged the same ones."""
    for who, steps in (("the reference", other), ("the run", mine)):
        if mine | other != steps:
            logged = f"{len(steps)} of {len(mine | other)} steps"
            return f"Not every step was compared: {who} logged {logged}."
    for item in found:
        if item.kind == "loss" and not item.complete:
            who = "the reference" if item.reference is None else "the run"
            return f"Not every loss was compared: {who} has no {item.name} in step {item.step}."
    return ""


def _unpaired(found: Sequence[Difference]) -> str:
    """Say which numbers besides losses of steps were not compared; empty where all were."""
    names = sorted({item.name for item in found if not item.complete})
    return f" Not compared, because one run lacks it in some step: {', '.join(names)}." * bool(
        names
    )


def _uncounted(mine: Set[int], other: Set[int], steps: Set[int]) -> str:
    """Say in how many steps the tokens of two runs were not compared; empty where in all."""
    counted = len(steps & mine & other)
    if counted == len(steps):
        return ""
    where = f"in {len(steps) - counted} of these steps" if counted else "here"
    return f" That both trained on the same tokens was not checked {where}."


def _parted_tokens(outcome: Outcome, reference: Outcome) -> str:
    """Say in which step two runs first trained on different tokens; empty where in none."""
    mine, other = outcome.tokens, reference.tokens
    step = next(
        (step for step in sorted(mine.keys() & other.keys()) if mine[step] != other[step]), 0
    )
    if not step:
        return ""
    (count, _), (expected, _) = mine[step], other[step]
    how = f"{count} against {expected} tokens" if count != expected else f"{count} tokens each"
    return (
        f"In step {step} it trained on other tokens than its reference ({how}): either the data "
        "depend on the layout of ranks, or tokens are lost or repeated."
    )
