"""Arithmetic on many numbers at a time where numpy is installed, else on one number at a time.

A cost model and the tables of a batch are formulas of a length. With numpy they are computed for
all lengths at once, which the planner of large batches needs. The page of the site that plans in a
browser has no numpy; there the same formulas are computed length by length. Both give the same
numbers, because IEEE 754 defines every operation exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

np: Any
try:
    import numpy as np
except ImportError:  # in the browser
    np = None

if TYPE_CHECKING:
    import numpy.typing as npt
    from numpy import int64

    IntArray = npt.NDArray[int64]
else:
    IntArray = Any

maximum: Callable[[Any, Any], Any] = max if np is None else np.maximum
minimum: Callable[[Any, Any], Any] = min if np is None else np.minimum


def choose(condition: Any, where_true: Any, where_false: Any) -> Any:
    """Return the first value where the condition holds, else the second."""
    if np is None:
        return where_true if condition else where_false
    return np.where(condition, where_true, where_false)


def to_whole(value: Any) -> Any:
    """Round to the nearest integer, halves to even."""
    return round(value) if np is None else np.rint(value).astype(np.int64)


def columns(formula: Callable[[Any], Sequence[Any]], values: Sequence[int]) -> list[list[Any]]:
    """Compute a formula for each value; return a list for each of the formula's results.

    >>> columns(lambda length: (length * length, length // 2), [3, 5])
    [[9, 25], [1, 2]]
    """
    if np is None:
        return [list(column) for column in zip(*map(formula, values), strict=True)]
    return [column.tolist() for column in formula(np.asarray(values, np.int64))]
