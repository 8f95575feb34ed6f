"""What is conspicuous in one training's curves of loss and gradient norm.

The rules are relative to the steps just before, since a loss has no absolute scale, and are coarse
on purpose: ordinary noise must pass. `judge_curves` only computes; `logs diagnose` and
`logs parity` call it with the curves that they have read.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

WINDOW = 50
"""Number of finite values before a step that it is compared with."""
FEWEST = 20
"""A step with fewer values before it is not judged: a training begins with a steep curve."""
SPIKE_DEVIATIONS = 14.0
"""Median absolute deviations above the median. Gaussian noise reaches five of them once in 2,000
steps; the rest is for heavier tails and for the error of a median of 50 values. With 14, noise of
a tenth of the loss gives no finding in 240,000 steps; with 10 it gives eleven."""
SPIKE_PART = 0.2
"""Part of the median that a spike must exceed, too: a curve may have almost no noise."""
EXPLOSION = 20.0
"""Times the median gradient norm. A norm five times the usual one occurs in sound trainings."""
STALL_STEPS = 50
"""Steps with exactly the same loss. A loss has at least five digits in a log, so that even a
training that has converged does not repeat one so often by chance."""
RECOVERED = 10
"""Steps without anything conspicuous after which a finding is past."""


@dataclass(frozen=True)
class CurveFinding:
    """One kind of conspicuous steps of a training.

    Attributes:
        kind: ``loss-not-finite``, ``loss-missing``, ``loss-spike``, ``loss-stall``,
            ``grad-norm-not-finite`` or ``grad-norm-explosion``.
        step: The first of the steps, ``last`` the last one, ``steps`` their number.
        past: Whether the training went on for `RECOVERED` steps after the last one.
        text: What was seen, in words.
    """

    kind: str
    step: int
    last: int
    steps: int
    past: bool
    text: str


def judge_curves(
    loss: Mapping[int, float], grad_norm: Mapping[int, float]
) -> tuple[CurveFinding, ...]:
    """Return what is conspicuous in the loss and the gradient norm of one training.

    Args:
        loss, grad_norm: Values by step; a curve that the log does not have is empty.
    """
    spikes = dict(_outliers(loss, _is_spike))
    # Beside a spike, or a loss that is not finite, the gradient norm says nothing new.
    normal = {
        step: value
        for step, value in grad_norm.items()
        if step not in spikes and math.isfinite(loss.get(step, 0.0))
    }
    missing = [step for step in grad_norm if step not in loss]
    if 2 * len(missing) > len(grad_norm):  # the two curves are logged at different steps
        missing = []
    conspicuous = {
        "loss-not-finite": _not_finite(loss, "the loss"),
        "loss-missing": dict.fromkeys(missing, "the line has no loss"),
        "loss-spike": {
            step: f"the loss is {loss[step]:.4g}, the median before it is {usual:.4g}"
            for step, usual in spikes.items()
        },
        "loss-stall": {step: f"the loss stays at {loss[step]:.7g}" for step in _stalled(loss)},
        "grad-norm-not-finite": _not_finite(normal, "the gradient norm"),
        "grad-norm-explosion": {
            step: f"the gradient norm is {normal[step]:.4g}, the median before it is {usual:.4g}"
            for step, usual in _outliers(normal, _is_explosion)
        },
    }
    steps = sorted({*loss, *grad_norm})
    recent = steps[-RECOVERED] if len(steps) > RECOVERED else -1
    return tuple(
        CurveFinding(kind, min(texts), max(texts), len(texts), max(texts) < recent, text)
        for kind, texts in conspicuous.items()
        if texts
        for text in [texts[min(texts)]]
    )


def _not_finite(curve: Mapping[int, float], name: str) -> dict[int, str]:
    return {step: f"{name} is {value}" for step, value in curve.items() if not math.isfinite(value)}


def _outliers(
    curve: Mapping[int, float], is_outlier: Callable[[float, float, Sequence[float]], bool]
) -> Iterator[tuple[int, float]]:
    """Yield the steps whose value stands out from those before, and the median of those."""
    arrived: deque[float] = deque()
    ordered: list[float] = []  # the same values; kept sorted, the median costs nothing
    for step in sorted(curve):
        value = curve[step]
        if not math.isfinite(value):
            continue
        if len(ordered) >= FEWEST:
            usual = ordered[len(ordered) // 2]
            if is_outlier(value, usual, ordered):
                yield step, usual
        arrived.append(value)
        insort(ordered, value)
        if len(arrived) > WINDOW:
            del ordered[bisect_left(ordered, arrived.popleft())]


def _is_spike(value: float, usual: float, before: Sequence[float]) -> bool:
    above = value - usual
    return above > SPIKE_PART * abs(usual) and above > SPIKE_DEVIATIONS * median(
        abs(one - usual) for one in before
    )


def _is_explosion(value: float, usual: float, before: Sequence[float]) -> bool:
    return value > EXPLOSION * usual > 0  # a norm that is printed as 0.000 has no scale


def _stalled(loss: Mapping[int, float]) -> list[int]:
    """Return the steps of all stalls, of which each has `STALL_STEPS` steps or more."""
    finite = (step for step in sorted(loss) if math.isfinite(loss[step]))
    runs = groupby(finite, key=lambda step: loss[step])
    equal = [list(steps) for _, steps in runs]
    return [step for steps in equal if len(steps) >= STALL_STEPS for step in steps]


def curve_line(finding: CurveFinding) -> str:
    """Return a finding in one line."""
    more = f" and at {finding.steps - 1:,} more, the last is {finding.last:,}"
    where = f"step {finding.step:,}{more if finding.steps > 1 else ''}"
    return f"{finding.kind} at {where}: {finding.text}"
