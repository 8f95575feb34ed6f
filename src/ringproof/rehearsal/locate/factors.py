"""Simple changes that turn the expected values into those that were computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ringproof.rehearsal.locate.reading import Array

CLOSE = 1e-3  # by which a factor may miss a number


def explained(mine: Array, expected: Array, sizes: Mapping[str, int]) -> str:
    """Say which simple change explains a difference; empty where none does.

    Args:
        mine: What was computed.
        expected: What the reference computed, of the same shape.
        sizes: Numbers that a factor can be, by name.
    """
    mine, expected = mine.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(mine).all():
        return "some values are not finite"
    if not mine.any():
        return "all values are zero"
    factor = scale_between(mine, expected)
    if factor is not None:
        return f"all values are multiplied by {named(factor, sizes)}"
    rows = mine.reshape(len(mine), -1), expected.reshape(len(expected), -1)
    if len(rows[0]) > 2:
        for shift in (1, -1):
            moved = np.roll(rows[1], shift, axis=0)
            inside = slice(1, None) if shift > 0 else slice(None, -1)
            if _near(rows[0][inside], moved[inside]):
                return f"rows are shifted by {shift}"
    if _near(np.sort(rows[0], axis=0), np.sort(rows[1], axis=0)):
        return "the rows are right and in another order"
    return ""


def scale_between(mine: Array, expected: Array) -> float | None:
    """Return the one factor between two tensors other than 1; ``None`` where there is none."""
    power = float((expected * expected).sum())
    if not power:
        return None
    factor = float((mine * expected).sum()) / power
    if abs(factor - 1) < CLOSE or not _near(mine, factor * expected):
        return None
    return factor


def named(factor: float, sizes: Mapping[str, int]) -> str:
    """Return a factor in words, such as ``0.5 (1/CP)``."""
    meanings = [name for name, value in _meanings(sizes) if abs(factor / value - 1) < CLOSE]
    return f"{factor:.4g}{f' ({meanings[0]})' if meanings else ''}"


def _meanings(sizes: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    for name, size in sizes.items():
        if size > 1:
            yield name, float(size)
            yield f"1/{name}", 1 / size
    yield "the sign", -1.0


def _near(mine: Array, expected: Array) -> bool:
    largest = float(np.abs(expected).max(initial=0.0))
    return bool(largest and np.abs(mine - expected).max(initial=0.0) < CLOSE * largest)
