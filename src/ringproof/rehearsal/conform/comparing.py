"""Judges a run of a case against its reference on one rank."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ringproof.rehearsal.conform.cases import Case
from ringproof.rehearsal.conform.result import CaseResult, Status
from ringproof.rehearsal.running import Failure, Outcome

NO_OPTION = ("unrecognized arguments", "invalid choice", "expected one argument")
ARGUMENT_ERROR = re.compile(r"^\S+\.py: error: (.+)$", re.MULTILINE)
NO_PACKAGE = ("ModuleNotFoundError", "ImportError", "AttributeError: module 'torch")
MESSAGE_LENGTH = 300
SMALL = 1e-12  # below which a difference is taken absolutely


def judge(case: Case, outcome: Outcome, reference: Outcome | None, iterations: int) -> CaseResult:
    """Return the verdict on a case.

    Args:
        case: What ran.
        outcome: What became of it.
        reference: What became of the same training on one rank; ``None`` if it did not run.
        iterations: Training steps that were asked for.
    """
    base = CaseResult(
        case.id, Status.STARTS, tolerance=case.tolerance, path=paths_of(outcome),
        iterations=len(outcome.losses), seconds=round(outcome.seconds, 1),
    )  # fmt: skip
    if outcome.failure is not None:
        return _failed(base, outcome, outcome.failure)
    if len(outcome.losses) < iterations:
        message = f"{len(outcome.losses)} of {iterations} steps have losses"
        return replace(base, status=Status.DIFFERS, message=message)
    if reference is None or reference.failure is not None:
        why = "no reference" if reference is None or reference.failure is None else (
            f"the reference fails: {_short(reference.failure.message)}"
        )  # fmt: skip
        return replace(base, message=why)
    return _compared(base, case, outcome, reference)


def paths_of(outcome: Outcome) -> tuple[str, ...]:
    """Return the attention paths of a run as ``TYPE:SIZE``, without the local ones."""
    found = {
        f"{call.comm_type}:{'x'.join(map(str, call.sizes))}"
        for report in outcome.ranks
        for call in report.attention
        if call.comm_type != "none"
    }
    return tuple(sorted(found))


def _failed(base: CaseResult, outcome: Outcome, failure: Failure) -> CaseResult:
    message, status = failure.message, Status.REFUSED
    if message.startswith("SystemExit"):
        log = (outcome.folder / f"rank-{failure.rank}.log").read_text(errors="replace")
        found = ARGUMENT_ERROR.findall(log)
        message = found[-1].strip() if found else message
    if any(sign in message for sign in NO_OPTION):
        status = Status.NOT_OFFERED
    elif failure.symbol or message.startswith(NO_PACKAGE):
        status = Status.CANNOT_RUN
    elif failure.kind in ("hung", "timeout"):
        status = Status.HUNG
    return replace(
        base, status=status, message=_short(message), place=failure.place, symbol=failure.symbol,
        rank=failure.rank,
    )  # fmt: skip


def _short(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ".join(lines)[:MESSAGE_LENGTH]


def _compared(base: CaseResult, case: Case, outcome: Outcome, reference: Outcome) -> CaseResult:
    losses = dict(_loss_differences(outcome.losses, reference.losses))
    norms = dict(_norm_differences(outcome.grad_norms, reference.grad_norms))
    evaluations = list(_evaluation_differences(outcome, reference)) if case.evaluates else []
    compared = replace(
        base,
        loss_difference=_largest(losses.values()),
        norm_difference=_largest(norms.values()) if norms else None,
        evaluation_difference=_largest(evaluations) if evaluations else None,
    )
    outside = [
        step
        for found in (losses, norms)
        for step, value in found.items()
        if not value <= case.tolerance
    ]
    if outside or not all(value <= case.tolerance for value in evaluations):
        return replace(compared, status=Status.DIFFERS, since=min(outside, default=0))
    missing = [path for path in case.path if path not in base.path]
    if missing:
        seen = ", ".join(base.path) or "no communication"
        message = f"{' and '.join(missing)} did not run; seen: {seen}"
        return replace(compared, status=Status.OTHER_PATH, message=message)
    if outcome.races:
        message = "; ".join(map(str, outcome.races))
        return replace(compared, status=Status.RACES, message=message)
    return replace(compared, status=Status.AGREES)


def _largest(values: Iterable[float]) -> float:
    """The largest value; infinity where one is not a number."""
    found = list(values)
    return math.inf if any(math.isnan(value) for value in found) else max(found)


def _relative(value: float, expected: float) -> float:
    difference = abs(value - expected)
    return difference if difference < SMALL else difference / max(abs(expected), SMALL)


def _loss_differences(
    found: Mapping[int, Mapping[str, float]], expected: Mapping[int, Mapping[str, float]]
) -> Iterator[tuple[int, float]]:
    """Largest difference of each step's losses; a loss that one side lacks is not compared."""
    for step, losses in found.items():
        names = losses.keys() & expected.get(step, {}).keys()
        values = [_relative(losses[name], expected[step][name]) for name in names]
        yield step, max(values, default=math.inf)


def _norm_differences(
    found: Mapping[int, float], expected: Mapping[int, float]
) -> Iterator[tuple[int, float]]:
    for step, norm in found.items():
        yield step, _relative(norm, expected[step]) if step in expected else math.inf


def _evaluation_differences(outcome: Outcome, reference: Outcome) -> Iterator[float]:
    found, expected = outcome.evaluations, reference.evaluations
    if len(found) != len(expected) or not found:
        yield math.inf
    for one, other in zip(found, expected, strict=False):
        for name in one.keys() & other.keys():
            yield _relative(one[name], other[name])
