"""What a growing training log shows: its steps, the curves, and what is conspicuous.

Its lines are read by the readers of `logs.training`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Any

from ringproof.logs.finding import RunFinding
from ringproof.logs.lines import Origin
from ringproof.logs.parsing import parse_engine
from ringproof.logs.training import log as training
from ringproof.logs.training.series import GRAD_NORM, LOSS, Columns

SECONDS, TOKENS, TFLOPS = "step_seconds", "tokens_per_second", "tflops_per_gpu"
_MILLISECONDS = "step_milliseconds"
WATCHED = (LOSS, GRAD_NORM, SECONDS, _MILLISECONDS, TOKENS, TFLOPS)
"""Quantities that are looked for in each step."""

_HISTOGRAM = re.compile(rb'"cp_histogram": ?\{([^{}]*)\}')
_COUNT = re.compile(rb'"([0-9]{1,9})": ?([0-9]{1,15})')
_ENGINE = b"Running with config="


WINDOW = 50
"""Number of lines before a step that it is compared with, and after which a kind is said again."""
_FEWEST: Mapping[str, int] = MappingProxyType({LOSS: 20, SECONDS: 10})
_DEVIATIONS, _PART, _SLOWER = 8, 0.1, 2
_GAPS = 3
_MOST_FINDINGS = 100
MOST_POINTS = 1024
SEQUENCES = "sequences by CP size"
ATTENTION = "lines of Transformer Engine by CP size"


@dataclass(frozen=True)
class StepLine:
    """What one line says of a step.

    Attributes:
        values: By name, of `WATCHED`; the iteration time is in seconds.
        cp_sizes: Sequences by the size of their CP group.
    """

    number: int
    values: Mapping[str, float]
    cp_sizes: Mapping[int, int] = field(default_factory=dict)


class StepReader:
    """Turns the lines of one file into steps. JSON and Megatron's lines may stand side by side.

    A file whose first line is a CSV header with a step is read as CSV.

    Attributes:
        is_table: Whether the file is CSV, of which an unfinished line may end inside a number.
        engine_sizes: Where lines of Transformer Engine are counted, by the CP size of attention.
    """

    def __init__(self, origin: Origin, columns: Columns, engine_sizes: Counter[int]) -> None:
        self._json = training.JsonReader(columns)
        self._megatron = training.MegatronReader(columns)
        self._table = training.TableReader(columns, origin)
        self._begun = False
        self.is_table = False
        self.engine_sizes = engine_sizes

    def take(self, line: bytes) -> Iterable[StepLine]:
        """Return the steps of one line, mostly one or none.

        Raises:
            InputError: A CSV header has no column for any quantity, or several.
        """
        if not self._begun:
            self._begun = True
            self.is_table = training.recognised([line]) == training.CSV
        if self.is_table:
            self._table.take(line)
            return _drained(self._table)
        if b"iteration" in line and training.ITERATION.search(line):  # the former is far cheaper
            self._megatron.take(line)
            nans, self._megatron.without_loss = self._megatron.without_loss, []
            return _drained(self._megatron, nans)
        if line.startswith(b"\0"):  # the hole where a file was emptied under its writer
            line = line.lstrip(b"\0")
        if line.startswith(b"{"):
            self._json.take(line)
            return _drained(self._json, histogram=line)
        if _ENGINE in line:
            found = parse_engine(line.decode("utf-8", errors="replace"))
            size = found and (found.cp_size if found.context_parallel else 1)
            if size:
                self.engine_sizes[size] += 1
        return ()


def _drained(
    reader: training.Reader, nans: list[int] | None = None, histogram: bytes | None = None
) -> Iterator[StepLine]:
    """Take the values out of the reader, so that it does not grow."""
    steps: dict[int, dict[str, float]] = {step: {LOSS: math.nan} for step in nans or ()}
    for name, series in reader.series.items():
        for step, value in series.drain() if len(series) else ():
            milliseconds = name == _MILLISECONDS
            where = SECONDS if milliseconds else name
            steps.setdefault(step, {})[where] = value / 1000 if milliseconds else value
    sizes = _histogram(histogram) if histogram is not None and steps else {}
    for step in sorted(steps):
        yield StepLine(step, steps[step], sizes)


def _histogram(line: bytes) -> dict[int, int]:
    found = _HISTOGRAM.search(line)
    return {int(size): int(count) for size, count in _COUNT.findall(found[1])} if found else {}


@dataclass(frozen=True)
class Point:
    """The values of some consecutive steps; ``low`` and ``high`` are NaN if none is finite.

    Attributes:
        first: First of the steps, ``last`` the last one.
        count: Number of values.
    """

    first: int
    last: int
    low: float
    high: float
    count: int = 1

    def joined(self, other: Point) -> Point:
        """This point and the one after it as one."""
        known = [one for one in (self, other) if not math.isnan(one.low)]
        low = min((one.low for one in known), default=math.nan)
        high = max((one.high for one in known), default=math.nan)
        return Point(self.first, other.last, low, high, self.count + other.count)


class Curve:
    """Values by ascending step; when they become many, neighbours share a point.

    Attributes:
        points: At most `MOST_POINTS`, each with the extremes of its steps.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._width = 1

    def add(self, step: int, value: float) -> None:
        """Append the value of a step after all others."""
        shown = value if math.isfinite(value) else math.nan
        point = Point(step, step, shown, shown)
        if self.points and self.points[-1].count < self._width:
            point = self.points.pop().joined(point)
        self.points.append(point)
        if len(self.points) > MOST_POINTS:
            pairs = zip(self.points[::2], [*self.points[1::2], None], strict=False)
            self.points = [one.joined(two) if two else one for one, two in pairs]
            self._width *= 2

    def cut(self, step: int) -> None:
        """Forget ``step`` and all after it; a point that begins before it stays."""
        while self.points and self.points[-1].first >= step:
            self.points.pop()


class Watch:
    """What was seen so far of one run, whose steps one file or several hold.

    Attributes:
        step: Last step, or ``None`` where there is none.
        lines: Lines that held a step.
        latest: Last value of each quantity.
        not_finite: First step whose loss is not a number or infinite; those before a restart that
            were trained again do not count.
        findings: The last `_MOST_FINDINGS` of what was conspicuous.
        sizes: Sequences by the size of their CP group.
        engine_sizes: Lines of Transformer Engine by CP size, which are counted where the log does
            not say the sizes of its sequences.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.lines = 0
        self.latest: dict[str, float] = {}
        self.not_finite: int | None = None
        self.findings: deque[RunFinding] = deque(maxlen=_MOST_FINDINGS)
        self.sizes: Counter[int] = Counter()
        self.engine_sizes: Counter[int] = Counter()
        self.curves: dict[str, Curve] = {}
        self._speaker = ""
        self._occurred: dict[str, int] = {}
        self._recent: dict[str, deque[float]] = {}
        self._gaps: deque[int] = deque(maxlen=WINDOW)

    @property
    def cp_counts(self) -> dict[int, int]:
        """How often each CP size occurred; `cp_counted` says in what."""
        return dict(sorted((self.sizes or self.engine_sizes).items()))

    @property
    def cp_counted(self) -> str:
        """What is counted by CP size."""
        return SEQUENCES if self.sizes else ATTENTION

    def as_json(self) -> dict[str, Any]:
        """What was seen, as plain data."""
        counts = {str(size): count for size, count in self.cp_counts.items()}
        return {
            "version": 1,
            "step": self.step,
            "lines": self.lines,
            "latest": self.latest,
            "loss_finite": self.not_finite is None,
            "cp_histogram": {"counted": self.cp_counted, "counts": counts},
            "findings": [
                {"kind": code, "step": step, "text": text} for code, text, step in self.findings
            ],
            "curves": {
                name: [[one.first, one.last, one.low, one.high] for one in curve.points]
                for name, curve in self.curves.items()
            },
        }

    def take(self, path: str, step: StepLine) -> list[RunFinding]:
        """Take the next step of a file; return what is new and conspicuous.

        A step that another file has shown already is passed over.
        """
        if self.step is not None and step.number <= self.step and path != self._speaker:
            return []
        self.lines += 1
        found = list(self._order(step.number))
        self._speaker, self.step = path, step.number
        for name, value in step.values.items():
            found += self._value(name, value)
            self.latest[name] = value
            if name == SECONDS and self.lines == 1:  # the warm-up, mostly many times longer
                continue
            self.curves.setdefault(name, Curve()).add(step.number, value)
            if math.isfinite(value):
                self._recent.setdefault(name, deque(maxlen=WINDOW)).append(value)
        self.sizes.update(step.cp_sizes)
        return [finding for finding in found if self._is_new(finding)]

    def silent(self, seconds: float) -> list[RunFinding]:
        """Return that no step came for some seconds, unless it was said since the last step."""
        after = "" if self.step is None else f" after step {self.step:,}"
        text = f"no new step for {seconds:,.0f} s{after}"
        finding = RunFinding("stalled", text, self.step or 0)
        if self._occurred.get("stalled") == self.lines:
            return []
        self._occurred["stalled"] = self.lines
        self.findings.append(finding)
        return [finding]

    def _is_new(self, finding: RunFinding) -> bool:
        before = self._occurred.get(finding.code)
        self._occurred[finding.code] = self.lines
        new = before is None or self.lines - before > WINDOW or finding.code == "restart"
        if new:
            self.findings.append(finding)
        return new

    def _order(self, step: int) -> Iterator[RunFinding]:
        last = self.step
        if last is None:
            return
        gap = step - last
        if gap == 0:  # one step on several lines
            return
        if gap < 0:
            yield RunFinding("restart", f"step {step:,} again after step {last:,}: a restart", step)
            for curve in self.curves.values():
                curve.cut(step)
            self._recent.clear()
            self._gaps.clear()
            if self.not_finite is not None and self.not_finite >= step:
                self.not_finite = None
            return
        usual = median(self._gaps) if len(self._gaps) >= _GAPS else gap
        if gap >= 2 * usual:
            every = f"a line every {usual:g} steps" if usual > 1 else "a line every step"
            text = f"no line between {last:,} and {step:,} ({every} before)"
            yield RunFinding("missing", text, step)
        self._gaps.append(gap)

    def _value(self, name: str, value: float) -> Iterator[RunFinding]:
        step = self.step or 0
        if name in (LOSS, GRAD_NORM) and not math.isfinite(value):
            said = "loss" if name == LOSS else "grad norm"
            yield RunFinding(f"{said.replace(' ', '-')}-not-finite", f"{said} is {value}", step)
            if name == LOSS and self.not_finite is None:
                self.not_finite = step
            return
        before = self._recent.get(name, ())
        fewest = _FEWEST.get(name)
        if fewest is None or len(before) < fewest:
            return
        usual = median(before)
        if name == LOSS:
            deviation = median(abs(one - usual) for one in before)
            if value - usual > max(_DEVIATIONS * deviation, _PART * abs(usual)):
                yield RunFinding("loss-spike", f"loss {value:.4g}, median before {usual:.4g}", step)
        elif value > _SLOWER * usual:
            text = f"iteration time {value:.3g} s, median before {usual:.3g} s"
            yield RunFinding("slow", text, step)
