"""What is conspicuous in one training's curves of loss and gradient norm.

The rules are relative to the steps just before, since a loss has no absolute scale, and are coarse
on purpose: ordinary noise must pass. `judge_curves` only computes; `logs diagnose` and
`logs parity` call it with the curves that they have read.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from ringproof.logs.training.series import Series

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
UNDIVIDED = 1000.0
"""A gradient norm above this at every step, at a usual loss, is one of sums over tokens. That of a
mean is between 0.01 and about 100, also at the start of a training."""
FEWEST_UNDIVIDED = 5
"""Steps that must show it."""
USUAL_LOSS = 30.0
"""A loss above this is itself a sum, whose gradient norm is large as well."""
RECOVERED = 10
"""Steps without anything conspicuous after which a finding is past."""


@dataclass(frozen=True)
class CurveFinding:
    """One kind of conspicuous steps of a training.

    Attributes:
        kind: ``loss-not-finite``, ``loss-missing``, ``loss-spike``, ``loss-stall``,
            ``grad-norm-not-finite``, ``grad-norm-explosion`` or ``grad-norm-undivided``.
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


def judge_curves(loss: Series, grad_norm: Series) -> tuple[CurveFinding, ...]:
    """Return what is conspicuous in the loss and the gradient norm of one training.

    Args:
        loss, grad_norm: Values by ascending step (see `Series.settle`); a curve that the log does
            not have is empty.
    """
    found: dict[str, tuple[int, int, int, str]] = {}  # first step, last step, steps, text
    recent: deque[int] = deque(maxlen=RECOVERED + 1)
    for step, kind, text in _conspicuous(loss, grad_norm, recent):
        first, _, steps, told = found.get(kind, (step, step, 0, text))
        found[kind] = first, step, steps + 1, told
    for first, last, steps, value in _stalls(loss):
        found.setdefault("loss-stall", (first, last, steps, f"the loss stays at {value:.7g}"))
    if text := _undivided(loss, grad_norm):
        every = grad_norm.steps
        found["grad-norm-undivided"] = (every[0], every[-1], len(every), text)
    if 2 * found.get("loss-missing", (0, 0, 0))[2] > len(grad_norm):
        del found["loss-missing"]  # the two curves are logged at different steps
    past = recent[0] if len(recent) > RECOVERED else -1
    return tuple(
        CurveFinding(kind, first, last, steps, last <= past, text)
        for kind, (first, last, steps, text) in sorted(found.items())
    )


def _conspicuous(
    loss: Series, grad_norm: Series, recent: deque[int]
) -> Iterator[tuple[int, str, str]]:
    """Yield each conspicuous step, the kind, and a text; enter every step in ``recent``."""
    losses, norms = _Recent(), _Recent()
    for step, value, norm in _side_by_side(loss, grad_norm):
        recent.append(step)
        # Beside a spike, or a loss that is not finite, the gradient norm says nothing new.
        normal = value is None or math.isfinite(value)
        if value is None and len(loss):
            yield step, "loss-missing", "the line has no loss"
        elif value is not None and not normal:
            yield step, "loss-not-finite", f"the loss is {value}"
        elif value is not None:
            if losses.is_spike(value):
                normal = False
                text = f"the loss is {value:.4g}, the median before it is {losses.median:.4g}"
                yield step, "loss-spike", text
            losses.add(value)
        if norm is not None and normal:
            if not math.isfinite(norm):
                yield step, "grad-norm-not-finite", f"the gradient norm is {norm}"
                continue
            if norm > EXPLOSION * norms.median > 0:  # a norm that is printed as 0.000 has no scale
                text = f"the gradient norm is {norm:.4g}, the median before it is"
                yield step, "grad-norm-explosion", f"{text} {norms.median:.4g}"
            norms.add(norm)


def _side_by_side(
    loss: Series, grad_norm: Series
) -> Iterator[tuple[int, float | None, float | None]]:
    """Yield all steps with their values, in order."""
    a, b = 0, 0
    while a < len(loss) or b < len(grad_norm):
        one = loss.steps[a] if a < len(loss) else math.inf
        other = grad_norm.steps[b] if b < len(grad_norm) else math.inf
        value = loss.values[a] if one <= other else None
        norm = grad_norm.values[b] if other <= one else None
        yield int(min(one, other)), value, norm
        a, b = a + (one <= other), b + (other <= one)


def _undivided(loss: Series, grad_norm: Series) -> str:
    """Return what a gradient norm shows that is large at every step; empty for nothing."""
    norms = list(grad_norm.values)
    finite = [value for value in loss.values if math.isfinite(value)]
    if len(norms) < FEWEST_UNDIVIDED or not finite or max(map(abs, finite)) > USUAL_LOSS:
        return ""
    if not UNDIVIDED < min(norms) < math.inf:  # one that is not finite is no evidence
        return ""
    what = "from the first step on, at a usual loss: gradients may be sums over tokens that are"
    return (
        f"the gradient norm is at least {min(norms):.4g} {what} not divided by their number "
        "(look at calculate_per_token_loss and finalize_model_grads)"
    )


class _Recent:
    """The last `WINDOW` finite values, in the order of arrival and in that of their size."""

    def __init__(self) -> None:
        self._arrived: deque[float] = deque()
        self._ordered: list[float] = []  # kept sorted, so that the median costs nothing

    def add(self, value: float) -> None:
        """Take the next value."""
        self._arrived.append(value)
        insort(self._ordered, value)
        if len(self._arrived) > WINDOW:
            del self._ordered[bisect_left(self._ordered, self._arrived.popleft())]

    @property
    def median(self) -> float:
        """Their median, or NaN where there are too few to judge by."""
        few = len(self._ordered) < FEWEST
        return math.nan if few else self._ordered[len(self._ordered) // 2]

    def is_spike(self, value: float) -> bool:
        """Whether a value is above the median by a part of it and by several deviations."""
        usual = self.median
        above = value - usual
        return above > SPIKE_PART * abs(usual) and above > SPIKE_DEVIATIONS * median(
            abs(one - usual) for one in self._ordered
        )


def _stalls(loss: Series) -> Iterator[tuple[int, int, int, float]]:
    """Yield first and last step, number of steps, and value of each run of equal losses."""
    place = 0
    for value, run in groupby(loss.values):
        steps = sum(1 for _ in run)
        if steps >= STALL_STEPS and math.isfinite(value):
            yield loss.steps[place], loss.steps[place + steps - 1], steps, value
        place += steps


def curve_line(finding: CurveFinding) -> str:
    """Return a finding in one line."""
    more = f" and at {finding.steps - 1:,} more, the last is {finding.last:,}"
    where = f"step {finding.step:,}{more if finding.steps > 1 else ''}"
    return f"{finding.kind} at {where}: {finding.text}"
