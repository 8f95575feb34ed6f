"""What a ratio between two trainings usually means."""

from __future__ import annotations

import math
from statistics import median

from ringproof.logs.training.align import AlignedSeries

_WITHIN = 0.02  # of a whole number
_LARGEST_GROUP = 1024
_FEWEST_TOKENS = 100.0
_FEWEST_STEPS = 3


def ratio_meaning(ratio: float) -> str:
    """Return what a constant ratio points to, to be appended to a sentence; empty for nothing.

    >>> ratio_meaning(0.5)
    '; 2 can be the number of ranks (CP, DP or TP) over which one run sums and the other averages'
    >>> ratio_meaning(1.4)
    ''
    """
    if not (math.isfinite(ratio) and ratio > 0):
        return ""
    size = max(ratio, 1 / ratio)
    whole = round(size)
    if abs(size - whole) > _WITHIN * size or whole < 2:
        return ""
    if whole > _LARGEST_GROUP:
        return "; it can be the number of tokens, by which one run does not divide its sums"
    which = "ranks (CP, DP or TP) over which one run sums and the other averages"
    return f"; {whole} can be the number of {which}"


def token_scale(one: AlignedSeries) -> float:
    """Return how many times larger one run is at all of its first steps; 0 where it is not.

    A ratio in the hundreds and above that changes from step to step is no number of ranks, but can
    be the number of tokens in a batch.
    """
    ratios = [
        max(a / b, b / a)
        for a, b in zip(one.a_values, one.b_values, strict=True)
        if a > 0 and b > 0 and math.isfinite(a) and math.isfinite(b)
    ]
    if len(ratios) < _FEWEST_STEPS or min(ratios) < _FEWEST_TOKENS:
        return 0.0
    return median(ratios)
