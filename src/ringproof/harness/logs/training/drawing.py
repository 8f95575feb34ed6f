"""The points of a picture: few enough to draw, and still every peak."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ringproof.harness.logs.training.comparison import Comparison, SeriesComparison

BUCKETS = 240
"""Parts of the steps; of each the extremes of both series and the largest difference are drawn."""


@dataclass(frozen=True)
class Curves:
    """What is drawn of one series: the same steps for both runs and their difference.

    Attributes:
        relative: NaN where it is not defined, infinite where only one value is finite.
        complete: Whether every common step is drawn.
        first: Step of the first divergence.
    """

    name: str
    steps: tuple[int, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    relative: tuple[float, ...]
    complete: bool
    first: int | None


def curves(result: Comparison) -> tuple[Curves, ...]:
    """The curves of every compared series."""
    return tuple(_curves(one) for one in result.series)


def _curves(one: SeriesComparison) -> Curves:
    common, relative = one.common, one.found.relative
    kept = _kept([common.a, common.b, relative], len(common.steps), one.found.first_beyond)
    return Curves(
        one.name,
        tuple(common.steps[place] for place in kept),
        tuple(common.a[place] for place in kept),
        tuple(common.b[place] for place in kept),
        tuple(relative[place] for place in kept),
        len(kept) == len(common.steps),
        None if one.first is None else one.first.step,
    )


def _kept(columns: Sequence[Sequence[float]], count: int, first: int | None) -> list[int]:
    if count <= 4 * BUCKETS:
        return list(range(count))
    kept = {0, count - 1, *([] if first is None else [first, max(0, first - 1)])}
    for bucket in range(BUCKETS):
        places = range(bucket * count // BUCKETS, (bucket + 1) * count // BUCKETS)
        for column in columns:
            known = [place for place in places if not math.isnan(column[place])]
            if known:
                kept.update(
                    (min(known, key=column.__getitem__), max(known, key=column.__getitem__))
                )
    return sorted(kept)
