"""Where a run parts from the run that it must agree with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from ringproof.rehearsal.running import Outcome
from ringproof.rehearsal.verdict.differences import pairs

# Runs of the same data in other layouts differ by rounding: 1.9e-7 relative was the largest of all
# clean programs but MTP's, whose difference is upstream's own.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Seen:
    """How a difference between two runs shows first.

    Attributes:
        by: ``raised``, ``died``, ``hung``, ``timeout``, ``loss``, ``norm``, ``evaluation`` or
            ``path``; ``nothing`` where the runs agree.
        step: Training step, or index of the evaluation, from 1; 0 where there is none.
        difference: Relative difference there; 0 where there is none.
        rank: The rank that failed; -1 otherwise.
        message: What it said, and what other ranks waited for.
        place: ``FILE:LINE`` in upstream.
    """

    by: str
    step: int = 0
    difference: float = 0.0
    rank: int = -1
    message: str = ""
    place: str = ""


def compare(run: Outcome, expected: Outcome, tolerance: float = TOLERANCE) -> Seen:
    """Return how a run parts first from another of the same data.

    The earliest step counts whose losses or gradient norm differ by more than ``tolerance``,
    relative; then a failure; then evaluations.

    Raises:
        ValueError: The expected run failed or logged no loss, so that nothing can be compared.
    """
    if expected.failure is not None or not expected.losses:
        raise ValueError(f"the reference did not run: {expected.failure}")
    found = [seen for seen in _differences(run, expected) if seen.difference > tolerance]
    for seen in found:
        if run.failure is None or (seen.by != "evaluation" and seen.step in run.losses):
            return seen
    return _failed(run) if run.failure is not None else Seen("nothing")


def _failed(run: Outcome) -> Seen:
    failure = run.failure
    assert failure is not None
    waits = "; ".join(f"rank {rank}: {text}" for rank, text in sorted(failure.waiting.items()))
    message = failure.message.splitlines()[0] if failure.message else ""
    if failure.kind in ("hung", "timeout"):
        message = waits or message
    return Seen(failure.kind, len(run.losses), 0.0, failure.rank, message, failure.place)


def largest(run: Outcome, expected: Outcome) -> dict[str, float]:
    """Return the largest relative difference by ``loss``, ``norm`` and ``evaluation``."""
    found = {"loss": 0.0, "norm": 0.0, "evaluation": 0.0}
    for seen in _differences(run, expected):
        found[seen.by] = max(found[seen.by], seen.difference)
    return found


def _differences(run: Outcome, expected: Outcome) -> Iterator[Seen]:
    """Yield the largest difference of each step and kind that the expected run has."""
    known = (pair for pair in pairs(run, expected) if pair.reference is not None)
    for (kind, step), group in groupby(known, key=lambda pair: (pair.kind, pair.step)):
        yield Seen(kind, step, max(pair.relative for pair in group))


def path(run: Outcome) -> Counter[tuple[object, ...]]:
    """Count attention calls over all ranks by the path that they took."""
    return Counter(
        (report.rank, call.iteration, call.phase, call.comm_type, call.sizes, call.tokens)
        for report in run.ranks
        for call in report.attention
    )


def falls(run: Outcome) -> bool:
    """Return whether the loss of the last step is below that of the first."""
    values = [losses["lm loss"] for _, losses in sorted(run.losses.items()) if "lm loss" in losses]
    return len(values) > 1 and values[-1] < values[0]
