"""What a growing training log shows: the last step, its curves, and what is conspicuous."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any

from ringproof.harness.logs.training.series import GRAD_NORM, LOSS
from ringproof.harness.logs.watching.history import Curve, Point
from ringproof.harness.logs.watching.reading import SECONDS, Step

WINDOW = 50
"""Number of lines before a step that it is compared with, and after which a kind is said again."""
_FEWEST: Mapping[str, int] = MappingProxyType({LOSS: 20, SECONDS: 10})
_DEVIATIONS, _PART, _SLOWER = 8, 0.1, 2
_GAPS = 3
_MOST_FINDINGS = 100
SEQUENCES = "sequences by CP size"
ATTENTION = "lines of Transformer Engine by CP size"


@dataclass(frozen=True)
class Finding:
    """Something conspicuous at a step.

    Attributes:
        kind: ``loss-not-finite``, ``grad-norm-not-finite``, ``loss-spike``, ``slow``, ``restart``,
            ``missing`` or ``stalled``.
    """

    kind: str
    step: int
    text: str


@dataclass(frozen=True)
class State:
    """What was seen so far.

    Attributes:
        step: Last step, or ``None`` where there is none.
        lines: Lines that held a step.
        latest: Last value of each quantity.
        not_finite: First step whose loss is not a number or infinite; those before a restart that
            were trained again do not count.
        cp_counts: By CP size; ``cp_counted`` says what is counted.
        findings: The last `_MOST_FINDINGS`.
    """

    step: int | None
    lines: int
    latest: Mapping[str, float]
    not_finite: int | None
    cp_counts: Mapping[int, int]
    cp_counted: str
    findings: Sequence[Finding]
    curves: Mapping[str, Sequence[Point]]

    def as_json(self) -> dict[str, Any]:
        """The state as plain data."""
        return {
            "version": 1,
            "step": self.step,
            "lines": self.lines,
            "latest": dict(self.latest),
            "loss_finite": self.not_finite is None,
            "cp_histogram": {
                "counted": self.cp_counted,
                "counts": {str(size): count for size, count in self.cp_counts.items()},
            },
            "findings": [vars(finding) for finding in self.findings],
            "curves": {
                name: [[one.first, one.last, one.low, one.high] for one in points]
                for name, points in self.curves.items()
            },
        }


class Watch:
    """Takes the steps of one run, which one file or several hold, and judges each."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._speaker = ""
        self._lines = 0
        self._latest: dict[str, float] = {}
        self._not_finite: int | None = None
        self._sizes: dict[int, int] = {}
        self._findings: deque[Finding] = deque(maxlen=_MOST_FINDINGS)
        self._occurred: dict[str, int] = {}
        self._curves: dict[str, Curve] = {}
        self._recent: dict[str, deque[float]] = {}
        self._gaps: deque[int] = deque(maxlen=WINDOW)

    def take(self, path: str, step: Step) -> list[Finding]:
        """Take the next step of a file; return what is new and conspicuous.

        A step that another file has shown already is passed over.
        """
        if self._step is not None and step.number <= self._step and path != self._speaker:
            return []
        self._lines += 1
        found = list(self._order(step.number))
        self._speaker, self._step = path, step.number
        for name, value in step.values.items():
            found += self._value(name, value)
            self._latest[name] = value
            if name == SECONDS and self._lines == 1:  # the warm-up, mostly many times longer
                continue
            self._curves.setdefault(name, Curve()).add(step.number, value)
            if math.isfinite(value):
                self._recent.setdefault(name, deque(maxlen=WINDOW)).append(value)
        for size, count in step.cp_sizes.items():
            self._sizes[size] = self._sizes.get(size, 0) + count
        return [finding for finding in found if self._is_new(finding)]

    def silent(self, seconds: float) -> list[Finding]:
        """Return that no step came for some seconds, unless it was said since the last step."""
        after = "" if self._step is None else f" after step {self._step:,}"
        text = f"no new step for {seconds:,.0f} s{after}"
        finding = Finding("stalled", self._step or 0, text)
        if self._occurred.get("stalled") == self._lines:
            return []
        self._occurred["stalled"] = self._lines
        self._findings.append(finding)
        return [finding]

    def state(self, engine_sizes: Mapping[int, int]) -> State:
        """Return what was seen so far.

        Args:
            engine_sizes: Lines of Transformer Engine by CP size, which are counted where the log
                does not say the sizes of its sequences.
        """
        counts = self._sizes or engine_sizes
        return State(
            self._step,
            self._lines,
            dict(self._latest),
            self._not_finite,
            dict(sorted(counts.items())),
            SEQUENCES if self._sizes else ATTENTION,
            tuple(self._findings),
            {name: tuple(curve.points) for name, curve in self._curves.items()},
        )

    def _is_new(self, finding: Finding) -> bool:
        before = self._occurred.get(finding.kind)
        self._occurred[finding.kind] = self._lines
        new = before is None or self._lines - before > WINDOW or finding.kind == "restart"
        if new:
            self._findings.append(finding)
        return new

    def _order(self, step: int) -> Iterator[Finding]:
        last = self._step
        if last is None:
            return
        gap = step - last
        if gap == 0:  # one step on several lines
            return
        if gap < 0:
            yield Finding("restart", step, f"step {step:,} again after step {last:,}: a restart")
            for curve in self._curves.values():
                curve.cut(step)
            self._recent.clear()
            self._gaps.clear()
            if self._not_finite is not None and self._not_finite >= step:
                self._not_finite = None
            return
        usual = median(self._gaps) if len(self._gaps) >= _GAPS else gap
        if gap >= 2 * usual:
            every = f"a line every {usual:g} steps" if usual > 1 else "a line every step"
            yield Finding(
                "missing", step, f"no line between {last:,} and {step:,} ({every} before)"
            )
        self._gaps.append(gap)

    def _value(self, name: str, value: float) -> Iterator[Finding]:
        step = self._step or 0
        if name in (LOSS, GRAD_NORM) and not math.isfinite(value):
            said = "loss" if name == LOSS else "grad norm"
            yield Finding(f"{said.replace(' ', '-')}-not-finite", step, f"{said} is {value}")
            if name == LOSS and self._not_finite is None:
                self._not_finite = step
            return
        before = self._recent.get(name, ())
        fewest = _FEWEST.get(name)
        if fewest is None or len(before) < fewest:
            return
        usual = median(before)
        if name == LOSS:
            deviation = median(abs(one - usual) for one in before)
            if value - usual > max(_DEVIATIONS * deviation, _PART * abs(usual)):
                yield Finding("loss-spike", step, f"loss {value:.4g}, median before {usual:.4g}")
        elif value > _SLOWER * usual:
            text = f"iteration time {value:.3g} s, median before {usual:.3g} s"
            yield Finding("slow", step, text)
