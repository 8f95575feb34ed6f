"""Metrics that verl logs differently with and without CP although the training is the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringproof.rehearsal.runs.outcome import Outcome

DIFFERENT = 1e-4  # relative; what agrees in float32 differs by less than a hundredth of that
OF_THE_MACHINE = ("perf/", "timing", "mfu", "lr", "global_tokens", "total_tokens")


def logged(outcome: Outcome) -> Sequence[Mapping[str, float]]:
    """Return the metrics of each step, from a rank that logged them."""
    for report in outcome.ranks:
        found = _handed(report.results).get("metrics")
        if found:
            return list(found)
    return ()


def doubles(outcome: Outcome) -> tuple[str, ...]:
    """Return the packages that had a double on some rank."""
    handed = (_handed(report.results).get("doubles", ()) for report in outcome.ranks)
    return tuple(sorted({name for names in handed for name in names}))


def _handed(results: Any) -> Mapping[str, Any]:
    return results if isinstance(results, dict) else {}


def differing(outcome: Outcome, reference: Outcome) -> Iterator[str]:
    """Yield a sentence for each metric that differs, with its first step that does."""
    told = set[str]()
    for step, (mine, other) in enumerate(zip(logged(outcome), logged(reference), strict=False), 1):
        for name in sorted(mine.keys() & other.keys() - told):
            if name.startswith(OF_THE_MACHINE):
                continue
            a, b = mine[name], other[name]
            if abs(a - b) > DIFFERENT * max(abs(a), abs(b)):
                told.add(name)
                yield f"{name} is {a:.6g} in step {step}, and {b:.6g} without CP."
