"""A curve of any number of steps in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_POINTS = 1024


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
