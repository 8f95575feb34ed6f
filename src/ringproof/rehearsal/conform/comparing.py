"""Judges a run of a case against its reference on one rank."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from ringproof.rehearsal.conform.cases import Case
from ringproof.rehearsal.conform.result import CaseResult, Status
from ringproof.rehearsal.running import Failure, Outcome
from ringproof.rehearsal.verdict.differences import Pair, pairs

NO_OPTION = ("unrecognized arguments", "invalid choice", "expected one argument")
ARGUMENT_ERROR = re.compile(r"^\S+\.py: error: (.+)$", re.MULTILINE)
NO_PACKAGE = ("ModuleNotFoundError", "ImportError", "AttributeError: module 'torch")
MESSAGE_LENGTH = 300


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
    found = tuple(pairs(outcome, reference))
    losses, norms = _by_step(found, "loss"), _by_step(found, "norm")
    evaluations = _by_step(found, "evaluation") if case.evaluates else {}
    if case.evaluates and not evaluations:
        evaluations = {0: math.inf}
    compared = replace(
        base,
        loss_difference=max(losses.values()),
        norm_difference=max(norms.values(), default=None),
        evaluation_difference=max(evaluations.values(), default=None),
    )
    outside = [
        step
        for values in (losses, norms)
        for step, value in values.items()
        if value > case.tolerance
    ]
    if outside or any(value > case.tolerance for value in evaluations.values()):
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


def _by_step(found: Iterable[Pair], kind: str) -> dict[int, float]:
    """Largest difference of each step; a loss that one run lacks is not compared beside others."""
    steps: dict[int, list[float]] = {}
    for pair in found:
        if pair.kind == kind:
            steps.setdefault(pair.step, []).extend([pair.relative] if pair.complete else [])
    return {step: max(values, default=math.inf) for step, values in steps.items()}
