"""What ranks of verl hand over: doubles, missing groups, and metrics that CP changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ringproof.rehearsal.runs.outcome import Outcome

DIFFERENT = 1e-4  # relative; what agrees in float32 differs by less than a hundredth of that
Metrics = Sequence[Mapping[str, float]]
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
    return _of_all_ranks(outcome, "doubles")


def lacking(outcome: Outcome) -> tuple[str, ...]:
    """Return sentences on groups that the launch asks for and that no rank has."""
    return _of_all_ranks(outcome, "lacking")


def _of_all_ranks(outcome: Outcome, key: str) -> tuple[str, ...]:
    handed = (_handed(report.results).get(key, ()) for report in outcome.ranks)
    return tuple(sorted({text for texts in handed for text in texts}))


def _handed(results: Any) -> Mapping[str, Any]:
    return results if isinstance(results, dict) else {}


def differing(outcome: Outcome, reference: Outcome) -> Iterator[str]:
    """Yield a sentence for each metric that differs, with its first step that does."""
    return moved(logged(outcome), logged(reference))


def moved(these: Metrics, others: Metrics, named: Callable[[str], str] = str) -> Iterator[str]:
    """Yield a sentence for each metric of some steps that differs from the same without CP.

    Args:
        named: Makes a name fit to be shown.
    """
    told = set[str]()
    for step, (mine, other) in enumerate(zip(these, others, strict=False), 1):
        for name in sorted(mine.keys() & other.keys() - told):
            if name.startswith(OF_THE_MACHINE):
                continue
            a, b = mine[name], other[name]
            if abs(a - b) > DIFFERENT * max(abs(a), abs(b)):
                told.add(name)
                yield f"{named(name)} is {a:.6g} in step {step}, and {b:.6g} without CP."
